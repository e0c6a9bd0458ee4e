"""PyTorch's own operator samples (OpInfo), in plain PyTorch and under evict-everything stress.

    python lab/bench/opinfo.py --device cpu --out lab/results/opinfo-cpu.json
    python lab/bench/opinfo.py --device cpu --quick   # a fixed subset, for CI
    python lab/bench/opinfo.py --device cuda --shard 0/4 --out shard0.json
    python lab/bench/opinfo.py --merge shard?.json --out whole.json
    python lab/bench/opinfo.py --device cpu --drop    # what can be computed again is dropped
    python lab/bench/opinfo.py --device cpu --slices  # what can runs in slices
    python lab/bench/opinfo.py --device cpu --slices in_place  # or on what lies in the tier below
    python lab/bench/opinfo.py --device cpu --slices chains  # or what can waits, to be made in rows

For each operator of ``op_db`` and of the ``_foreach_*`` lists, in float32 and in one more type, a
few samples run forward, backward, in place and with ``out=``: twice in plain PyTorch and once
managed, where every block leaves after every operator and each clean eviction is checked against
the device's bytes. Results, gradients and what became of the inputs must agree to the last bit;
where they do not, plain PyTorch runs on its own many times, and has to give one result: also with
memory elsewhere, and on a GPU with other kernels and copies between and beside its own, by which
the order of atomic additions depends on no more than time.

Worker processes do the work: one that crashes or hangs costs the operator it was in, and no other.
Exit status: 0 when nothing failed, 1 when something did.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "tests" / "python"), str(ROOT / "python")]

from bench import opinfo_report, records  # noqa: E402
from bench.opinfo_cases import UNINITIALISED, Case, Way, all_cases, samples_of, ways_of  # noqa: E402

QUICK_STEP = 9  # every ninth operator
QUICK_ALWAYS = ("add", "mm", "addmm", "cat", "nn.functional.conv2d", "nn.functional.batch_norm",
                "index_put", "sort", "svd", "_foreach_add", "_foreach_norm", "unique", "cumsum",
                "nn.functional.embedding", "nn.functional.dropout", "scatter_add")  # fmt: skip
STALL_SECONDS = 180
REPETITIONS = 200  # plain runs that clear, or do not, a managed run that differs


def selected_keys(device: str, quick: bool, shard: str, only: str) -> list[str]:
    """The keys that this run is to do, each once."""
    names = list(dict.fromkeys(case.key for case in all_cases(device)))
    if only:
        names = [key for key in names if key.split("|")[0] in only.split(",")]
    if quick:
        kept = set(operators(names)[::QUICK_STEP]) | set(QUICK_ALWAYS)
        names = [key for key in names if key.split("|")[0] in kept]
    part, count = (int(text) for text in shard.split("/"))
    if not 0 <= part < count:
        raise SystemExit(f"--shard {shard}: give PART/COUNT with PART from 0 to COUNT-1")
    own = set(operators(names)[part::count])  # in all their types: counts of operators add up
    return [key for key in names if key.split("|")[0] in own]


def operators(keys: list[str]) -> list[str]:
    """The operators of these keys, each once."""
    return list(dict.fromkeys(key.split("|")[0] for key in keys))


class Skip(Exception):
    """There is nothing to compare with; the message is the reason."""


class Wrong(Exception):
    """The managed run differs."""


def varies(case: Case, way: Way, sample: Any, expected: Any, device: str) -> str:
    """Which plain run gave other bits, if one of many did; else nothing.

    Two runs in a row may agree by luck: LAPACK's paths depend on where its memory lies, and that
    is elsewhere only once other memory is in use; on a GPU every other run is disturbed.
    """
    import torch
    from stress.compare import bits_of, differences

    held = []
    for turn in range(REPETITIONS):
        held.append(torch.empty(1 + turn * 37 % 300, device=device))
        disturbed = device.startswith("cuda") and turn % 2 == 1
        with disturbance(device) if disturbed else contextlib.nullcontext():
            found = differences(expected, bits_of(way(case, sample)))
        if found:
            return f"plain run {turn + 1}" + ", disturbed" * disturbed
    return ""


def disturbance(device: str) -> contextlib.AbstractContextManager[Any]:
    """After each operator inside the caches are cold, and a copy runs beside the next one."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    noise = torch.zeros(64 << 20, dtype=torch.uint8, device=device)
    host = torch.zeros(4 << 20, dtype=torch.uint8, pin_memory=True)
    stream = torch.cuda.Stream(device)

    class Disturbance(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = func(*args, **(kwargs or {}))
            noise.add_(1)
            torch.cuda.synchronize(device)
            with torch.cuda.stream(stream):
                host.copy_(noise[: host.numel()], non_blocking=True)
            return result

    return Disturbance()


# A way of calling a case with one of its samples: name, way, sample, and the bits of the plain run.
Run = tuple[str, Way, Any, Any]
Refused = collections.Counter[str]

COUNTED = {
    "evictions": "evictions",
    "clean": "evictions.clean",
    "drops": "drops",
    "remakes": "remakes",
    "slices": "slices.operators",
    "in_place": "slices.in_place",
    "in_rows": "deferred.in_rows",
    "by_rows": "slices.by_rows",
}


def repeatable_runs(case: Case, device: str, count: int) -> tuple[list[Run], Refused]:
    """What plain PyTorch computes twice with the same bits, and why the rest is left out."""
    from stress.compare import bits_of, differences

    if case.info.name in UNINITIALISED:
        raise Skip("its result is uninitialised memory")
    try:
        samples = samples_of(case, device, count)
    except Exception as error:
        raise Skip(f"its samples cannot be made ({type(error).__name__})") from error
    if not samples:
        raise Skip("it has no samples in this type")

    plain: list[Run] = []
    refused: Refused = collections.Counter()
    for index, sample in enumerate(samples):
        for name, way in ways_of(case):
            try:
                first = bits_of(way(case, sample))
                second = bits_of(way(case, sample))
            except Exception as error:
                refused[f"plain PyTorch raises {type(error).__name__}"] += 1
                continue
            if differences(first, second):
                refused["two plain runs differ"] += 1
                continue
            plain.append((f"sample {index}, {name}", way, sample, first))
    if not plain:
        raise Skip(refused.most_common(1)[0][0] if refused else "it cannot be called")
    return plain, refused


@dataclasses.dataclass
class Managed:
    """What came of the runs under LMS."""

    kept: list[tuple[str, Any, Any]] = dataclasses.field(default_factory=list)
    suspects: list[tuple[Run, list[str]]] = dataclasses.field(default_factory=list)
    raised: list[str] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)


def run_managed(case: Case, device: str, runs: list[Run], drop: bool, slices: str) -> Managed:
    """The same runs under LMS, compared while it is on; it is off when this returns."""
    from stress.compare import bits_of, differences

    import torch_lms

    done = Managed()
    stress = "drop" if drop else True
    settings = {"slices": slices, "verify": True}
    if slices == "chains":  # which wait for who uses them
        settings["deferred_updates"] = True
    torch_lms.enable(device=device, min_block=1, stress=stress, **settings)
    before = torch_lms.memory_stats(device)
    try:
        for name, way, sample, expected in runs:
            try:
                result = way(case, sample)
                found = differences(expected, bits_of(result))
            except Exception as error:
                done.raised.append(f"{name}: raised {type(error).__name__}: {str(error)[:400]}")
                continue
            if found:
                done.suspects.append(((name, way, sample, expected), found))
            else:
                done.kept.append((name, result, expected))
        stats = torch_lms.memory_stats(device)
        done.counts = {key: int(stats[name]) - int(before[name]) for key, name in COUNTED.items()}
    finally:
        torch_lms.disable()
    return done


def run_case(
    case: Case,
    device: str,
    count: int,
    plain_only: bool,
    at: Callable[[str], None],
    drop: bool = False,
    slices: str = "auto",
) -> dict[str, Any]:
    """Compare one operator in one type; raises ``Skip`` or ``Wrong``.

    With ``drop`` what can be computed again is dropped, and only the rest evicted.
    """
    from stress.compare import bits_of, differences

    plain, refused = repeatable_runs(case, device, count)
    if plain_only:
        nothing = dict.fromkeys(COUNTED, 0)
        return {"runs": len(plain), "refused": dict(refused)} | nothing

    at("managed")
    done = run_managed(case, device, plain, drop, slices)
    cleared: list[str] = []
    wrong = done.raised
    for (name, way, sample, expected), found in done.suspects:
        if which := varies(case, way, sample, expected, device):
            refused["plain runs differ now and then"] += 1
            cleared.append(f"{name} ({which})")
        else:
            wrong += [f"{name}: {text}" for text in found[:4]]
    for name, result, expected in done.kept:
        found = differences(expected, bits_of(result))
        wrong += [f"{name}, after disable(): {text}" for text in found[:4]]
    if wrong:
        raise Wrong("; ".join(wrong[:6]))
    if not done.kept:
        raise Skip(refused.most_common(1)[0][0])
    report = {"runs": len(done.kept), "refused": dict(refused), "cleared": cleared}
    return report | done.counts


# Worker


def worker(args: argparse.Namespace) -> int:
    """Runs the cases named on standard input; one JSON line at the start and end of each."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    by_key: dict[str, Case] = {}
    for case in all_cases(args.device):
        by_key.setdefault(case.key, case)
    with open(args.worker, "a", buffering=1) as sink:

        def say(**record: Any) -> None:
            sink.write(json.dumps(record) + "\n")

        for key in (line.strip() for line in sys.stdin):
            say(begin=key, phase="plain")
            start = time.perf_counter()
            record: dict[str, Any] = {"end": key}
            try:
                record |= run_case(
                    by_key[key],
                    args.device,
                    args.samples,
                    args.plain_only,
                    lambda phase, key=key: say(begin=key, phase=phase),
                    args.drop,
                    args.slices,
                )
                record["status"] = "passed"
            except Skip as error:
                record |= {"status": "skipped", "reason": str(error)}
            except Wrong as error:
                record |= {"status": "failed", "reason": str(error)}
            except BaseException as error:
                text = "".join(traceback.format_exception(error))
                record |= {"status": "failed", "reason": text[-1500:]}
            record["seconds"] = round(time.perf_counter() - start, 3)
            poisoned = False
            if args.device.startswith("cuda"):
                try:
                    torch.cuda.synchronize()
                except RuntimeError:
                    poisoned = True  # the context is lost: a fresh worker goes on
            say(**record)
            if poisoned:
                os._exit(3)
    return 0


# Parent


class Progress:
    """What the workers have said so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.open: tuple[str, str] | None = None
        self.done: dict[str, dict[str, Any]] = {}

    def read(self) -> bool:
        """Takes in new lines; whether there were any."""
        with self.path.open() as source:
            source.seek(self.offset)
            text = source.read()
        text = text[: text.rfind("\n") + 1]
        self.offset += len(text.encode())
        for line in text.splitlines():
            record = json.loads(line)
            if "begin" in record:
                self.open = record["begin"], record["phase"]
            else:
                self.done[record["end"]] = record
                self.open = None
        return bool(text)

    def close(self, why: str) -> None:
        """Records the case that a worker died in."""
        if self.open is None:
            return
        key, phase = self.open
        status, reason = "failed", f"{phase}: {why}"
        if phase == "plain":
            status, reason = "skipped", f"plain PyTorch {why}"
        self.done[key] = {"end": key, "status": status, "reason": reason}
        self.open = None


def run_workers(args: argparse.Namespace, keys: list[str], sink: Path) -> dict[str, dict[str, Any]]:
    """Starts workers, one after another, until every case has an answer or the time is over."""
    progress = Progress(sink)
    deadline = time.monotonic() + args.budget
    fruitless = 0
    while left := [key for key in keys if key not in progress.done]:
        before = len(progress.done)
        child = spawn(args, sink, left)
        last = time.monotonic()
        why = ""
        while child.poll() is None:
            if time.monotonic() > deadline:
                child.kill()
                child.wait()
                progress.read()
                return progress.done
            if progress.read():
                last = time.monotonic()
                opinfo_report.show_progress(len(progress.done), len(keys))
            elif time.monotonic() - last > STALL_SECONDS:
                why = f"made no progress for {STALL_SECONDS} s"
                child.kill()
                child.wait()
                break
            time.sleep(0.05)
        progress.read()
        progress.close(why or f"ended the process with status {child.returncode}")
        fruitless = fruitless + 1 if len(progress.done) == before else 0
        if fruitless == 3:
            raise SystemExit(f"the worker does not start (status {child.returncode})")
    return progress.done


def spawn(args: argparse.Namespace, sink: Path, keys: list[str]) -> subprocess.Popen[str]:
    """A worker for these cases."""
    command = [sys.executable, __file__, "--worker", str(sink), "--device", args.device]
    command += ["--samples", str(args.samples), "--threads", str(args.threads)]
    if args.plain_only:
        command.append("--plain-only")
    if args.drop:
        command.append("--drop")
    command += ["--slices", args.slices]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    assert child.stdin is not None
    try:
        child.stdin.write("\n".join(keys))
        child.stdin.close()
    except BrokenPipeError:
        pass  # it ended already: its status says why
    return child


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shard", default="0/1", help="PART/COUNT: do every COUNTth operator")
    parser.add_argument("--samples", type=int, default=0, help="samples an operator and type")
    parser.add_argument("--quick", action="store_true", help="a fixed subset, two samples")
    parser.add_argument("--only", default="", help="names of operators, comma-separated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds, at most")
    parser.add_argument("--plain-only", action="store_true", help="without torch_lms")
    parser.add_argument("--drop", action="store_true", help="drop what can be computed again")
    how = {"nargs": "?", "const": "always", "default": "auto"}
    parser.add_argument("--slices", **how, help="the setting; alone: run in slices what can")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="add up all shards")
    parser.add_argument("--out", "--json", type=Path, help="where the JSON goes")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.samples = args.samples or (2 if args.quick else 4)
    return args


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs what was selected; the JSON object."""
    start = time.monotonic()
    commit, _ = records.commit()  # of the start: others may go on working in the tree
    keys = selected_keys(args.device, args.quick, args.shard, args.only)
    with tempfile.TemporaryDirectory() as folder:
        sink = Path(folder) / "results.jsonl"
        sink.touch()
        done = run_workers(args, keys, sink)
    return opinfo_report.summarise(args, done, len(keys), time.monotonic() - start, commit)


def main(argv: list[str] | None = None) -> int:
    """Run the suite, or add up its shards; the exit status."""
    args = parse_arguments(argv)
    if args.worker:
        return worker(args)
    report = opinfo_report.merge(args.merge) if args.merge else run(args)
    opinfo_report.print_table(report)
    if args.out:
        records.write(report, args.out)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
