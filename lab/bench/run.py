"""Measure training steps: what they cost in memory, under LMS, and as users make them fit today.

    python lab/bench/run.py --step resnet50_bf16_256x224 --method lms-reactive --limit 5.5GiB
    python lab/bench/run.py --suite reactive --budget 420
    python lab/bench/run.py --suite planned --step unet3d_bf16_192 --methods lms-swap --ratios 2
    python lab/bench/run.py --suite recompute --budget 540
    python lab/bench/run.py --suite host --models bert_large_24x512,gpt2_medium_8x1024

Every run leaves one JSON object (its fields: `lab/bench/records.py`); a table comes at the end.
Runs happen in processes of their own, so that each starts on a fresh device; one that fails is
recorded with its error, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records, report
from bench.suites import SUITES, Job, Run, Suite

STEP_NAMES = (
    "resnet50_bf16_256x224",
    "resnet50_tf32_4x2000",
    "deeplabv3_r101_bf16_16x513",
    "deeplabv3_r101_bf16_16x513_deterministic",
    "googlenet_bf16_15x1120",
    "unet3d_bf16_192",
    "llama1b_adamw_bf16_4x2048",
    "llama1b_adamw_bf16_4x2048_in_backward",
    "loop_shapes",
    "loop_branch",
    "efficientnetv2_m_64x288",
    "swin_base_96x224",
    "bert_large_24x512",
    "gpt2_medium_8x1024",
    "densenet201_128x224",
    "convnext_base_96x224",
    "vit_large_64x224",
)
METHOD_NAMES = (
    "plain",
    "lms-fits",
    "lms-reactive",
    "lms",
    "lms-swap",
    "lms-recording",
    "save_on_cpu",
    "checkpoint",
    "host",
)
_REACTIVE, _RECOMPUTE, _SWAP = "lms-reactive", "lms", "lms-swap"
_PLANNED = frozenset({_RECOMPUTE, _SWAP})
_LIMITED = _PLANNED | {_REACTIVE, "lms-recording"}

# Left free beside a limit, for what no allocator of the process hands out: the code of kernels,
# which the driver loads when they first run (cuDNN's and cuBLAS's are large), local memory of
# kernels, and tables of the driver. What the context takes at once is in use before already.
_SLACK = "1.5GiB"

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str) -> int:
    """`5.5GiB`, `512MiB`, `4096`: bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount such as 5.5GiB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of `A,B`: names among those known."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=sorted(SUITES))
    parser.add_argument(
        "--step",
        "--models",
        type=_names(STEP_NAMES),
        help="with --suite: only these (A,B); else the one to run",
    )
    parser.add_argument(
        "--methods", type=_names(METHOD_NAMES), default=(), help="with --suite: only these (A,B)"
    )
    parser.add_argument(
        "--ratios", type=_numbers, default=(), help="with --suite: limits of only these (2,3)"
    )
    parser.add_argument("--method", choices=METHOD_NAMES, default="plain", help="with --step")
    parser.add_argument("--ratio", type=float, help="limit: the plain run's peak over this")
    parser.add_argument("--limit", type=parse_bytes, help="limit, such as 5.5GiB; beats --ratio")
    parser.add_argument("--out", type=Path, default=records.ROOT / "lab/results")
    parser.add_argument("--budget", type=float, help="seconds; skips what would not fit")
    parser.add_argument("--reference", type=Path, help="a plain run's record, instead of a new run")
    parser.add_argument("--device", help="default: cuda:0 if there is one, else cpu")
    parser.add_argument("--tiny", action="store_true", help="small variants, for the CPU")
    parser.add_argument(
        "--warmup",
        type=int,
        help="warm-up steps (default: the suite's, or 3 or 4); of planned runs: those under a plan",
    )
    parser.add_argument(
        "--steps",
        type=int,
        help="timed steps (default: the suite's, or 6 of planned runs, or about 6 seconds, 5 to "
        "20); lms-recording: rounds",
    )
    parser.add_argument(
        "--optimizer", choices=("default", "fused", "foreach", "forloop"), default="default"
    )
    parser.add_argument(
        "--attention",
        choices=("cudnn", "flash", "efficient", "math"),
        help="kernel (default: flash for the Llama steps, PyTorch's choice for packages'); flash "
        "repeats bit by bit, cuDNN's backward pass does not",
    )
    parser.add_argument("--no-deterministic", dest="deterministic", action="store_false")
    parser.add_argument(
        "--headroom",
        type=float,
        default=1.0,
        help="the allocator may reserve this times the limit; 0: not enforced",
    )
    parser.add_argument("--min-block", help="smallest block that LMS manages")
    parser.add_argument(
        "--plan-seconds", type=float, default=5.0, help="most time to search for a plan"
    )
    parser.add_argument(
        "--enable",
        metavar="SETTING=VALUE",
        action="append",
        default=[],
        help="a further setting of enable(), such as deferred_updates=false; may be repeated",
    )
    parser.add_argument("--clip", action="store_true", help="gradients are clipped at norm 1")
    parser.add_argument(
        "--traces", type=Path, help="planned runs leave STEP.trace.json.gz in this directory"
    )
    parser.add_argument(
        "--ballast-slack",
        type=parse_bytes,
        default=_SLACK,
        help="of a GPU's memory, only the limit and this are left to runs under LMS",
    )
    parser.add_argument(
        "--no-ballast", dest="ballast_slack", action="store_const", const=None, help="or all of it"
    )
    arguments = parser.parse_args(argv)
    if wrong := [pair for pair in arguments.enable if "=" not in pair]:
        parser.error(f"--enable {wrong[0]}: a setting and its value are needed, SETTING=VALUE")
    if not arguments.suite:
        if arguments.step is None or len(arguments.step) != 1:
            parser.error("one --step, or a --suite, is needed")
        if arguments.method in _LIMITED and arguments.limit is None and arguments.ratio is None:
            parser.error(f"--method {arguments.method} needs --limit or --ratio")
    return arguments


def _chosen(arguments: argparse.Namespace) -> Suite:
    if arguments.suite:
        suite = SUITES[arguments.suite]
        suite = suite.only(arguments.step or (), arguments.methods, arguments.ratios)
        return suite.shrunk() if arguments.tiny else suite
    (step,) = arguments.step
    plain = Run("plain")
    run = Run(arguments.method)
    if arguments.method in _LIMITED:
        ratio = arguments.ratio if arguments.limit is None else None
        run = replace(run, limit_bytes=arguments.limit, ratio=ratio)
    jobs = [] if arguments.reference or run == plain else [Job(step, (plain,), 30)]
    return Suite((*jobs, Job(step, (run,), 60)))


class Bench:
    """Runs jobs one after another and keeps what came of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.skipped: list[str] = []
        self._start = time.monotonic()
        self._references: dict[str, Path] = {}
        self._traced: set[str] = set()
        self._paths: list[Path] = []
        out: Path = arguments.out
        self._file = out if out.suffix == ".json" else None
        self._directory = out.parent if self._file else out

    @property
    def results(self) -> list[records.Record]:
        """What the runs so far have left."""
        return [records.read(path) for path in self._paths]

    def _path(self, step: str, run: Run) -> Path:
        if self._file and not self.arguments.suite and run.method == self.arguments.method:
            return self._file
        tiny = ".tiny" if self.arguments.tiny else ""
        return self._directory / f"{step}{tiny}.{run.label()}.json"

    def _left(self) -> float | None:
        if self.arguments.budget is None:
            return None
        return self.arguments.budget - (time.monotonic() - self._start)

    def _reference(self, step: str) -> Path | None:
        """The plain run's record: as given, of this call, or else of an earlier one."""
        known = self.arguments.reference or self._references.get(step)
        earlier = self._path(step, Run("plain"))
        return known or (earlier if earlier.exists() else None)

    def _trace(self, job: Job) -> Path | None:
        """Where the job is to leave its step's trace, if it records one."""
        folder = self.arguments.traces
        records_one = any(run.method in _PLANNED for run in job.runs)
        if folder is None or not records_one or job.step in self._traced:
            return None
        tiny = ".tiny" if self.arguments.tiny else ""
        return folder / f"{job.step}{tiny}.trace.json.gz"

    def _request(self, job: Job, paths: list[Path], trace: Path | None) -> dict[str, Any]:
        given = self.arguments
        reference = self._reference(job.step)

        def or_else(chosen: int | None, default: int | None) -> int | None:
            return default if chosen is None else chosen

        return {
            "step": job.step,
            "options": {
                "tiny": given.tiny,
                "optimizer": given.optimizer,
                "attention": given.attention,
                "deterministic": given.deterministic,
                "clip": given.clip,
            },
            "device": given.device,
            "headroom": given.headroom or None,
            "min_block": given.min_block or ("4KiB" if given.tiny else None),
            "plan_seconds": given.plan_seconds,
            "enable": dict(pair.split("=", 1) for pair in given.enable),
            "ballast_slack": given.ballast_slack,
            "reference": str(reference.resolve()) if reference else None,
            "runs": [
                {
                    "method": run.method,
                    "limit_bytes": run.limit_bytes,
                    "ratio": run.ratio,
                    "warmup": or_else(given.warmup, run.warmup),
                    "steps": or_else(given.steps, run.steps),
                    "compared": run.compared,
                    "trace": str(trace.resolve()) if trace and run.method in _PLANNED else None,
                    "out": str(path.resolve()),
                }
                for run, path in zip(job.runs, paths, strict=True)
            ],
        }

    def _work(self, request: dict[str, Any], timeout: float | None) -> str:
        """Run a worker; how it ended, in words."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "request.json"
            file.write_text(json.dumps(request))
            command = [sys.executable, "-X", "faulthandler", "-m", "bench.worker", str(file)]
            path = os.pathsep.join(
                filter(None, [str(records.ROOT / "lab"), os.environ.get("PYTHONPATH")])
            )
            try:
                done = subprocess.run(
                    command,
                    env={**os.environ, "PYTHONPATH": path},
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "the time budget ran out"
        return f"the process ended with status {done.returncode}"

    def run(self, job: Job) -> None:
        """Run a job, unless what is left of the budget is too short for it."""
        left = self._left()
        if left is not None and job.seconds > left:
            note = f"{job.skipped()} (about {job.seconds:.0f} s; {max(left, 0):.0f} s left)"
            self.skipped.append(note)
            print(f"skipped {note}", flush=True)
            return
        print(f"[{time.monotonic() - self._start:5.0f} s] {job.skipped()}", flush=True)
        paths = [self._path(job.step, run) for run in job.runs]
        for path in paths:
            path.unlink(missing_ok=True)
        trace = self._trace(job)
        if trace:
            trace.unlink(missing_ok=True)
        ended = self._work(self._request(job, paths, trace), left)
        for run, path in zip(job.runs, paths, strict=True):
            if not path.exists():
                record = records.empty(job.step, run.method)
                record.update(limit_bytes=run.limit_bytes, ratio=run.ratio, error=ended)
                record["commit"], record["commit_dirty"] = records.commit()
                records.write(records.finish(record), path)
            self._compare_with_reactive(job.step, run)
            self._paths.append(path)
            if reason := records.read(path)["skipped"]:
                self.skipped.append(f"{job.skipped()}: {reason}")
            if run.method == "plain" and not records.read(path)["error"]:
                self._references[job.step] = path
        if trace and trace.exists():
            self._traced.add(job.step)

    def _compare_with_reactive(self, step: str, run: Run) -> None:
        """Once both are known, write into the planned run's record how it compares."""
        if run.method not in (_SWAP, _REACTIVE):
            return
        files = [self._path(step, replace(run, method=name)) for name in (_SWAP, _REACTIVE)]
        if not all(file.exists() for file in files):
            return
        planned, reactive = (records.read(file) for file in files)
        alike = all(planned[key] == reactive[key] for key in ("machine", "limit_bytes"))
        if alike and planned["step_ms"] and reactive["step_ms"]:
            planned["over_reactive"] = planned["step_ms"] / reactive["step_ms"]
            records.write(planned, files[0])


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 if a run failed."""
    bench = Bench(parse_arguments(argv))
    for job in _chosen(bench.arguments).jobs:
        bench.run(job)
    results = bench.results
    if results:
        print("\n" + report.terminal(results))
    if any(result["method"] == _RECOMPUTE for result in results):
        print("\n" + report.recompute(results))
    elif any(result["method"] == _SWAP for result in results):
        print("\n" + report.planned(results))
    if any(result["phases"] for result in results):
        print("\n" + report.recording(results))
    if any(result["host"] for result in results):
        print("\n" + report.host(results))
    for note in bench.skipped:
        print(f"skipped {note}")
    return 1 if any(result["error"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
