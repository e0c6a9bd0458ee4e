"""What the demo shows: the checks on its two runs, the table, and the picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from tissue import CLASSES, Brain

Run = dict[str, Any]

_COLOURS = ("#101014", "#4c78a8", "#b0b0b8", "#f4e3c1")
_THIRD = 1 / 3


def size(amount: int) -> str:
    """Bytes for people: `812 MiB`, `1.35 GiB`."""
    if amount >= 2**30:
        return f"{amount / 2**30:.2f} GiB"
    return f"{amount / 2**20:.0f} MiB"


def step_seconds(run: Run) -> float:
    """The median step, without the first, which also sets things up."""
    return statistics.median(run["seconds"][1:] or run["seconds"])


def dice(labels: np.ndarray, predicted: np.ndarray) -> list[float]:
    """For each class, 2|A∩B| / (|A| + |B|): 1 is a perfect match."""
    scores = []
    for index in range(len(CLASSES)):
        truth, guess = labels == index, predicted == index
        whole = int(truth.sum()) + int(guess.sum())
        scores.append(2 * int((truth & guess).sum()) / whole if whole else 1.0)
    return scores


def problems(plain: Run, lms: Run) -> list[str]:
    """Why the demo failed; empty if all holds. Values are compared to the last bit."""
    found = []
    for step, (a, b) in enumerate(zip(plain["losses"], lms["losses"], strict=False), 1):
        if a != b:
            found.append(f"step {step}: loss {a} in memory, {b} under LMS (first difference)")
            break
    if len(plain["losses"]) != len(lms["losses"]):
        found.append(f"{len(plain['losses'])} and {len(lms['losses'])} steps were run")
    for what in ("weights", "prediction"):
        if plain[what] != lms[what]:
            found.append(f"the final {what} differ: sha256 {plain[what][:12]} and {lms[what][:12]}")
    if lms["peak"] >= plain["peak"] * _THIRD:
        found.append(
            f"the peak under LMS, {size(lms['peak'])}, is not below a third of the "
            f"{size(plain['peak'])} that the run in memory took"
        )
    if plain["lms_imported"]:
        found.append("the plain run was not plain: torch_lms was imported in it")
    if not lms["stats"].get("bytes_out") or not lms["stats"].get("bytes_in"):
        found.append("nothing was moved, so nothing was shown")
    return found


def _loss_rows(plain: Run, lms: Run, every: bool) -> list[str]:
    count = min(len(plain["losses"]), len(lms["losses"]))
    rows = [f"  {'step':>4}  {'loss in memory':<34}{'loss under LMS':<34}"]
    for step in range(count):
        a, b = plain["losses"][step], lms["losses"][step]
        if not every and a == b and step not in (0, count // 2, count - 1):
            continue
        cells = "".join(f"{f'{float.fromhex(x):.6f}  {x}':<34}" for x in (a, b))
        rows.append(f"  {step + 1:>4}  {cells}{'=' if a == b else '≠'}")
    return rows


def table(plain: Run, lms: Run, scores: list[float], every_step: bool) -> str:
    """Both runs side by side, at most 80 columns; all losses, or three and those that differ."""
    stats, limit = lms["stats"], int(lms["limit"])
    seconds = [step_seconds(run) for run in (plain, lms)]
    share, slower = lms["peak"] / plain["peak"], seconds[1] / seconds[0]
    steps = max(len(lms["losses"]), 1)
    rows = [
        ("", "in memory", "under LMS"),
        ("peak memory", size(plain["peak"]), f"{size(lms['peak'])}  ({share:.1%})"),
        ("limit", "none", f"{size(limit)}  ({limit / plain['peak']:.1%})"),
        ("peak by LMS's own count", "-", size(stats.get("device.bytes.peak", 0))),
        ("moved out, a step", "-", size(stats.get("bytes_out", 0) // steps)),
        ("moved in, a step", "-", size(stats.get("bytes_in", 0) // steps)),
        ("time of a step", f"{seconds[0]:.2f} s", f"{seconds[1]:.2f} s  (×{slower:.1f})"),
        ("final weights, sha256", plain["weights"][:16], lms["weights"][:16]),
        ("prediction, sha256", plain["prediction"][:16], lms["prediction"][:16]),
    ]
    rule = "  " + "─" * 74
    lines = [rule, *(f"  {name:<28}{a:<23}{b}" for name, a, b in rows), rule]
    lines += [*_loss_rows(plain, lms, every_step), rule]
    match = ", ".join(f"{name} {score:.2f}" for name, score in zip(CLASSES, scores, strict=True))
    lines.append(f"  Dice: {match}")
    return "\n".join(line.rstrip() for line in lines)


def picture(path: Path, brain: Brain, predicted: np.ndarray, plain: Run, lms: Run) -> None:
    """Save a PNG: one axial slice as T1, true and predicted tissue, and the losses of both runs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    z = brain.image.shape[2] // 2
    figure, axes = plt.subplots(
        1, 4, figsize=(15, 4.6), width_ratios=(1, 1, 1, 1.35), layout="constrained"
    )
    style = {"cmap": ListedColormap(_COLOURS), "vmin": 0, "vmax": len(CLASSES) - 1}
    style["interpolation"] = "nearest"
    panels = (
        ("T1-weighted MRI", brain.image, {"cmap": "gray"}),
        ("tissue", brain.labels, style),
        (f"predicted under LMS, {size(int(lms['limit']))}", predicted, style),
    )
    for axis, (title, volume, options) in zip(axes, panels, strict=False):
        axis.imshow(volume[:, :, z].T, origin="lower", **options)
        axis.set_title(title, fontsize=11)
        axis.axis("off")
    axes[1].legend(
        handles=[Patch(color=c, label=n) for c, n in zip(_COLOURS, CLASSES, strict=True)],
        loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=2, fontsize=8, frameon=False,
    )  # fmt: skip

    for run, form, label in (
        (plain, {"color": "#9aa5b1", "linewidth": 5}, "in memory"),
        (lms, {"color": "#d1495b", "marker": "o", "markersize": 4}, "under LMS"),
    ):
        label += f", {size(run['peak'])}"
        values = [float.fromhex(x) for x in run["losses"]]
        axes[3].plot(range(1, len(values) + 1), values, label=label, **form)
    axes[3].set(xlabel="step", ylabel="cross-entropy", title="loss")
    axes[3].spines[["top", "right"]].set_visible(False)
    axes[3].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
