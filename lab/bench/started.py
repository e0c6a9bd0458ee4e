"""Programs of others, started as a user starts them: plain, and by ``lms run`` at half their peak.

    tools/scripts/venv_on_top.sh .venv-started tools/requirements/started.txt
    .venv-started/bin/python lab/bench/started.py --timm-train train.py --out started.json
    python lab/bench/started.py --table started.json

Each row runs on the CPU in a folder of its own, with tiny data made for it, three times: plain;
with room for everything, which tells its peak; and at half of that. What the first and the last
have left is compared, bit by bit. Where they differ, a second plain run says whether the program
repeats itself. Nothing of the packages is imported here.

timm's train.py is not in its wheel: it lies in the root of
https://github.com/huggingface/pytorch-image-models (Apache-2.0); a record names its blob in git.
ultralytics saves weights only averaged and in half precision: started_weights.py saves them as
training has left them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records, started_files
from bench.records import Record

ROOM = "1TiB"
VARIABLES = {
    "LMS_DEVICE": "cpu",
    "LMS_PLAN_CACHE": "off",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "YOLO_OFFLINE": "true",
}
_LMS = "python -m torch_lms run --limit {limit} --min-block 65536 --log info --"
# Said again by a logger of the program's, without the name.
_SAID = re.compile(
    r"^torch_lms: .* at most ([\d.]+) (\w+) of tensors .* (\d+) steps ran under a plan"
)
_UNITS = {"B": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10}
_HERE = Path(__file__).resolve().parent
_SECONDS = 3600
_LAST_LINES = 40


@dataclass(frozen=True)
class Row:
    """A program, what it is started with, and what it leaves."""

    name: str
    package: str  # none: it needs no other than PyTorch
    command: str
    settings: dict[str, Any]
    compared: dict[str, tuple[str, str]]  # what: the file, and where in it
    data: Callable[[Path], None] = lambda folder: None
    scripts: dict[str, Path | None] = field(default_factory=dict)  # beside the data, by name
    weights: bool = False  # started_weights.py saves them

    @property
    def batches(self) -> int:
        return self.settings["epochs"] * self.settings["batches_per_epoch"]


# ---- data


def _draw(seed: int, side: int) -> tuple[Any, list[float]]:
    """Noise with a bright square, and where the square is: its middle and its sides, as shares."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    pixels = random.integers(0, 128, (side, side, 3), dtype=np.uint8)
    wide = int(random.integers(side // 4, side // 2))
    left, top = (int(at) for at in random.integers(0, side - wide, 2))
    pixels[top : top + wide, left : left + wide, seed % 3] = 255
    middle = [(left + wide / 2) / side, (top + wide / 2) / side]
    return Image.fromarray(pixels), [*middle, wide / side, wide / side]


def _detection(images: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for part, count in (("train", images), ("val", 16)):
            for kind in ("images", "labels"):
                (folder / "data" / kind / part).mkdir(parents=True)
            for at in range(count):
                picture, box = _draw(at, 160)
                picture.save(folder / "data" / "images" / part / f"{at:04}.png")
                label = " ".join([str(at % 3), *(f"{share:.6f}" for share in box)])
                (folder / "data" / "labels" / part / f"{at:04}.txt").write_text(f"{label}\n")
        names = ", ".join(f"{at}: {name}" for at, name in enumerate(("red", "green", "blue")))
        text = f"train: images/train\nval: images/val\nnames: {{{names}}}\n"
        (folder / "data" / "data.yaml").write_text(text)

    return make


def _classes(images: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for part, count in (("train", images), ("validation", 32)):
            for at in range(count):
                kind = folder / "data" / part / ("red", "green", "blue")[at % 3]
                kind.mkdir(parents=True, exist_ok=True)
                _draw(at, 64)[0].save(kind / f"{at:04}.png")

    return make


# ---- rows


def _yolo(name: str, batches: int, epochs: int, nbs: int = 64) -> Row:
    told = f" nbs={nbs}" if nbs != 64 else ""
    command = (
        "yolo detect train model=yolov8n.yaml data=data/data.yaml imgsz=160 batch=8 "
        f"epochs={epochs}{told} device=cpu save_dir=out"
    )
    return Row(
        name,
        "ultralytics",
        command,
        {
            "epochs": epochs,
            "batches_per_epoch": batches,
            "nbs": nbs,
            "workers": min(8, os.cpu_count() or 1),
        },
        {
            "weights": ("weights.pt", ""),
            "averaged weights, half precision": ("out/weights/last.pt", ".model"),
        },
        _detection(8 * batches),
        weights=True,
    )


def _timm(name: str, train: Path | None, epochs: int, prefetcher: bool = True) -> Row:
    command = (
        "train.py data --model resnet18 --img-size 64 --num-classes 3 --batch-size 16 "
        f"--epochs {epochs} --model-ema --workers 1 --device cpu"
        f"{'' if prefetcher else ' --no-prefetcher'} --output out --experiment train"
    )
    last = "out/train/last.pth.tar"
    return Row(
        name,
        "timm",
        command,
        {"epochs": epochs, "batches_per_epoch": 20, "workers": 1, "prefetcher": prefetcher},
        {
            "weights": (last, ".state_dict"),
            "averaged weights": (last, ".state_dict_ema"),
            "optimizer's states": (last, ".optimizer"),
        },
        _classes(320),
        {"train.py": train},
    )


def _monai(name: str, epochs: int, workers: int) -> Row:
    return Row(
        name,
        "monai",
        f"started_monai.py --epochs {epochs} --workers {workers}",
        {"epochs": epochs, "batches_per_epoch": 10, "workers": workers},
        {"weights": ("end.pt", ".weights"), "losses": ("end.pt", ".losses")},
        scripts={"started_monai.py": _HERE / "started_monai.py"},
    )


def rows(timm_train: Path | None) -> list[Row]:
    """All of them; without timm's train.py its rows have no script."""
    return [
        _yolo("yolo", 40, 2, nbs=8),
        _yolo("yolo-nbs64", 40, 2),
        _yolo("yolo-short", 5, 8, nbs=8),
        _yolo("yolo-short-nbs64", 5, 8),
        _timm("timm", timm_train, 6),
        _timm("timm-no-prefetcher", timm_train, 2, prefetcher=False),
        _monai("monai-1", 12, 1),
        _monai("monai-2", 12, 2),
        _monai("monai-0", 4, 0),
    ]


# ---- running


class Failed(Exception):
    """A program has not ended well, or has not left what it was to leave."""

    def __init__(self, run: str, why: int | str, output: str) -> None:
        super().__init__(f"{run}: {why}")
        self.facts = {"failed": run, "exit": why, "output": output.splitlines()[-_LAST_LINES:]}


def _words(command: str, limit: str | None) -> list[str]:
    """The command line as this interpreter has it."""
    program, *arguments = shlex.split(command)
    if limit is not None:
        start = shlex.split(_LMS.format(limit=limit))
        return [sys.executable, *start[1:], program, *arguments]
    if program.endswith(".py"):
        return [sys.executable, program, *arguments]
    return [str(Path(sys.executable).parent / program), *arguments]


def _run(row: Row, scratch: Path, name: str, limit: str | None = None) -> tuple[float, str]:
    """Seconds and output of a run, whose folder has that name afterwards. While it runs it is
    ``here``: paths are the same each time."""
    here = scratch / "here"
    shutil.rmtree(here, ignore_errors=True)
    for folder in (".beside", ".settings"):
        (here / folder).mkdir(parents=True)
    row.data(here)
    for script, path in row.scripts.items():
        shutil.copyfile(path, here / script)
    if row.weights:
        shutil.copyfile(_HERE / "started_weights.py", here / ".beside" / "sitecustomize.py")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LMS_")}
    paths = [str(here / ".beside"), str(records.ROOT / "python")]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    variables = kept | VARIABLES | {"PYTHONPATH": os.pathsep.join(paths)}
    variables["YOLO_CONFIG_DIR"] = str(here / ".settings")
    if "LMS_LIBRARY" in os.environ:
        variables["LMS_LIBRARY"] = os.environ["LMS_LIBRARY"]
    start, status = time.perf_counter(), 0
    with open(scratch / f"{name}.log", "w+", errors="replace") as log:
        try:
            words = _words(row.command, limit)
            status = subprocess.run(
                words, cwd=here, env=variables, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, timeout=_SECONDS,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = f"not ended after {_SECONDS} s"
        except OSError as error:
            status = str(error)
        seconds = time.perf_counter() - start
        log.seek(0)
        output = log.read()
    shutil.rmtree(scratch / name, ignore_errors=True)
    here.rename(scratch / name)
    if status != 0:
        raise Failed(name, status, output)
    return round(seconds, 1), output


def _said(name: str, output: str) -> tuple[str, float, int]:
    """LMS's last line, and in it the peak in MiB and the planned steps."""
    found = [line for line in output.splitlines() if _SAID.search(line)]
    if len(found) != 1:
        raise Failed(name, f"LMS has said {len(found)} times what happened", output)
    amount, unit, steps = _SAID.search(found[0]).groups()
    return found[0].removeprefix("torch_lms: "), float(amount) * _UNITS[unit], int(steps)


def _left_out(row: Row) -> str | None:
    for name, path in row.scripts.items():
        if path is None or not path.is_file():
            return f"{name} was not given"
    try:
        version(row.package or "torch")
    except PackageNotFoundError:
        return f"{row.package} is not installed"
    return None


def _compared(row: Row, scratch: Path) -> Record:
    plain = scratch / "plain"
    found = started_files.compare(row.compared, plain, scratch / "lms")
    made = {"equal": started_files.all_equal(found), "compared": found}
    if not made["equal"]:
        _run(row, scratch, "again")
        again = started_files.compare(row.compared, plain, scratch / "again")
        made["plain_repeats"] = started_files.all_equal(again)
    return made


def measure(row: Row, scratch: Path) -> Record:
    """The record of a row; why it was left out, or how it failed, where it has."""
    made: Record = {"name": row.name, "program": row.package, "command": row.command}
    made |= {"settings": row.settings, "batches": row.batches}
    why = _left_out(row)
    if why is not None:
        return made | {"left_out": why}
    made["version"] = version(row.package) if row.package else None
    for name, path in row.scripts.items():
        text = path.read_bytes()
        made["blobs"] = {name: hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()}
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        made["seconds_plain"], _ = _run(row, scratch, "plain")
        _, output = _run(row, scratch, "peak", ROOM)
        _, peak, _ = _said("peak", output)
        limit = f"{peak / 2:.1f}MiB"
        made |= {"lms": f"{_LMS.format(limit=limit)} {row.command}", "peak_mib": peak}
        made["limit_mib"] = float(limit.removesuffix("MiB"))
        made["seconds_lms"], output = _run(row, scratch, "lms", limit)
        made["said"], _, made["plan_steps"] = _said("lms", output)
        made["exit"] = 0
        try:
            made |= _compared(row, scratch)
        except (OSError, ValueError) as error:
            raise Failed("compare", str(error), output) from error
    except Failed as failure:
        made |= failure.facts
    return made


# ---- the page's table


def _cells(row: Record) -> list[str]:
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["settings"].items())
    start = [f"{row['program']} {row.get('version', '')}".strip(), f"`{row['command']}`", facts]
    if "equal" not in row:
        why = row.get("left_out") or f"{row['failed']} failed: {row['exit']}"
        return [*start, "", str(row["batches"]), "", why, ""]
    parts = [f"{each['equal']} of {each['tensors']} {what}"
             for what, each in row["compared"].items()]  # fmt: skip
    return [
        *start,
        f"{row['peak_mib']:.1f}, {row['limit_mib']:.1f} MiB",
        str(row["batches"]),
        str(row["plan_steps"]),
        "; ".join(parts),
        f"{row['seconds_plain']:.0f}, {row['seconds_lms']:.0f} s",
    ]


def table(record: Record) -> str:
    """The rows of a record in Markdown."""
    heads = ["program", "command", "settings", "peak, limit", "batches", "`plan.steps`"]
    heads += ["equal tensors", "plain, LMS"]
    lines = [heads, ["---"] * len(heads), *(_cells(row) for row in record["rows"])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of rows")
    parser.add_argument("--timm-train", type=Path, help="timm's train.py")
    parser.add_argument("--scratch", type=Path, help="kept; by default a folder that goes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="prints the table of this record, runs nothing")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())))
        return
    all_rows = rows(given.timm_train)
    unknown = set(given.only or ()) - {row.name for row in all_rows}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    commit, dirty = records.commit()
    made: Record = {"commit": commit, "commit_dirty": dirty, "machine": records.machine("cpu")}
    made |= {"variables": VARIABLES, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        scratch = (given.scratch or Path(folder)).resolve()
        for row in all_rows:
            if given.only and row.name not in given.only:
                continue
            made["rows"].append(measure(row, scratch / row.name))
            print(json.dumps(made["rows"][-1], indent=1), flush=True)
            if given.out:
                records.write(made, given.out)
    sys.exit(any(not row.get("equal", "left_out" in row) for row in made["rows"]))


if __name__ == "__main__":
    main()
