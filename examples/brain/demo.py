"""Train a 3D U-Net on a brain MRI in memory, then in less than a third of that; compare the bits.

Exit status: 0 if every loss, the final weights and the prediction are equal to the last bit and the
peak kept below a third; 1 if not, with what went wrong; 2 for bad arguments; 130 when interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_NEEDED = {
    "torch_lms": "pip install .",
    "tqdm": "pip install tqdm",
    "matplotlib": "pip install matplotlib",
}


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1 / 3:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1/3")
    return value


def _steps(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device", default="auto", help="auto (a GPU if there is one), cpu, cuda, cuda:N"
    )
    parser.add_argument("--steps", type=_steps, default=16, help="training steps of each run")
    parser.add_argument(
        "--fraction",
        type=_fraction,
        default=0.25,
        help="limit, as a part of what the run in memory took",
    )
    parser.add_argument("--threads", type=_steps, default=min(len(os.sched_getaffinity(0)), 4))
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder for the results"
    )
    return parser.parse_args()


def _train(args: argparse.Namespace, name: str, label: str, device: str, *more: str) -> dict:
    """Run `train.py` in a fresh process: its result. Raises RuntimeError if it fails."""
    out = args.out / name
    (out / "result.json").unlink(missing_ok=True)
    environment = dict(os.environ)
    # Give every tensor's pages back to the kernel at its death, in both runs: the figures then
    # tell what was in use, not what malloc kept.
    environment["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
    # Threads that wait asleep: on a machine with other work, spinning ones take cores from it.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if more:
        environment["LMS_DEVICE"] = device
    command = [sys.executable, str(_HERE / "train.py"), "--out", str(out), "--label", label]
    command += ["--device", device, "--steps", str(args.steps), "--threads", str(args.threads)]
    command += more
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        raise RuntimeError(f"the run {label!r} failed (status {status}): see above")
    return json.loads((out / "result.json").read_text())


def main() -> int:
    args = _arguments()
    for package, remedy in _NEEDED.items():
        if importlib.util.find_spec(package) is None:
            print(f"demo: the package {package} is missing: {remedy}", file=sys.stderr)
            return 2
    import numpy as np
    from tissue import load_brain

    import report

    start = time.monotonic()
    try:
        plain = _train(args, "plain", "in memory", args.device)
        peak = plain["peak"]
        limit = int(peak * args.fraction) // 2**20 * 2**20
        print(
            f"  1. in memory, {plain['machine']}, torch {plain['torch']}: "
            f"peak {report.size(peak)}, "
            f"{report.step_seconds(plain):.2f} s a step",
            flush=True,
        )
        lms = _train(
            args, "lms", "under LMS", plain["device"], f"--limit={limit}", f"--cap={peak // 3}"
        )
        print(
            f'  2. torch_lms.enable(limit="{limit >> 20}MiB"): peak {report.size(lms["peak"])}, '
            f"{report.step_seconds(lms):.2f} s a step",
            flush=True,
        )
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1

    brain = load_brain()
    predicted = np.load(args.out / "lms" / "prediction.npy")
    image = args.out / "brain.png"
    report.picture(image, brain, predicted, plain, lms)
    print(report.table(plain, lms, report.dice(brain.labels, predicted), sys.stdout.isatty()))
    print(f"  picture: {image}   ({time.monotonic() - start:.0f} s in all)")

    failures = report.problems(plain, lms)
    for failure in failures:
        print(f"demo: FAILED: {failure}", file=sys.stderr)
    if not failures:
        print("  Every loss, the final weights and the prediction are equal to the last bit.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
