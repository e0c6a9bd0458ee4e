"""Training programs of others under limits: whether they run, with which bits, how fast.

    python lab/bench/programs.py --jobs 6 --out programs.json
    python lab/bench/programs.py --only gpt2,swin --modes drawn
    python lab/bench/programs.py --suite loops --out loops.json

Each program runs plainly, twice, since only what repeats can be compared; then under LMS
  drawn     at a limit drawn at random between 30 and 80 % of its peak,
  smallest  from a twentieth of its peak on at the limits that LMS's errors name, until it runs,
  half      at half of its peak (not by default), to be timed: with many ``--steps``,
  reactive  likewise without plans, some steps (not by default).
The suite ``loops`` has the loops whose steps differ, at half of their peaks, one after the other.
The limit is enforced by the allocator's memory fraction, too. Programs run in processes of their
own, ``--jobs`` at once: then their times say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench import host, memory, records, weights
from bench.packages import Missing
from bench.program import SEED, Program, Where
from bench.programs_of_others import LOOPS, PROGRAMS
from bench.records import Record
from bench.setting import Setting
from bench.steps import StepOptions, package

UNTIMED = ("drawn", "smallest")
MODES = (*UNTIMED, "half", "reactive")
COMPARED = 8
# Iterations of which medians tell nothing: plans are made. How many a loop has behind them, and how
# many without plans.
FIRST, OF_LOOPS, REACTIVE = 10, 100, 20
LEAST, MOST = 0.3, 0.8
_SMALL, _MOST_LIMITS = 1 / 20, 12


def _settings(where: Where, plan_seconds: float, **enable: str) -> Setting:
    return Setting(
        "",
        StepOptions(),
        where.device,
        min_block="4KiB" if where.tiny else None,
        plan_seconds=plan_seconds,
        enable=enable,
    )


def _build(name: str, where: Where) -> Program:
    random.seed(SEED)
    torch.manual_seed(SEED)
    return PROGRAMS[name](where)


class _Run:
    """One run of a program, iteration by iteration."""

    def __init__(self, name: str, where: Where) -> None:
        self._device = where.device
        self.program: Program | None = _build(name, where)
        self.losses: list[str] = []
        self.ms: list[float] = []
        self.planned: list[int] = []
        self.host_peaks: list[int] = []
        self.fingerprint = ""

    def iterate(self, count: int, lms: ModuleType | None = None) -> None:
        """Runs `count` iterations; what is compared is taken on the way, and after each what
        `lms` says of it."""
        assert self.program is not None
        for _ in range(count):
            start = time.perf_counter()
            loss = self.program.step(len(self.ms)).item()
            self.ms.append((time.perf_counter() - start) * 1e3)
            if lms is not None:
                stats = lms.memory_stats(str(self._device))
                self.planned.append(stats["plan.steps"])
                self.host_peaks.append(stats["host.bytes.peak"])
            if len(self.losses) < COMPARED:
                self.losses.append(float(loss).hex())
                if len(self.losses) == COMPARED:
                    self.fingerprint = weights.fingerprint(self.program.modules)

    def bits(self) -> tuple[list[str], str]:
        """What another run has to agree with."""
        return self.losses, self.fingerprint

    def end(self) -> None:
        """Lets go of everything."""
        self.program = None
        memory.release(self._device)


def _use_what_repeats(name: str, where: Where) -> None:
    """Kernels that repeat. Of those of attention PyTorch takes them only if it is to refuse what
    has none, instead of warning: warnings are for programs with such operators."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.use_deterministic_algorithms(True)
    try:
        run = _Run(name, where)
        run.iterate(1)
        run.end()
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        traceback.clear_frames(error.__traceback__)
        torch.use_deterministic_algorithms(True, warn_only=True)


def _plain(name: str, where: Where, steps: int) -> tuple[_Run, Record]:
    # The times of the second: whoever meets a shape first (libraries choose kernels) pays for it.
    found: list[_Run] = []
    peak: int | None = None
    for _ in range(2):
        memory.release(where.device)
        memory.reset_peaks(where.device)
        run = _Run(name, where)
        run.iterate(COMPARED + steps)
        if where.device.type == "cuda" and peak is None:
            peak = memory.read_peaks(where.device)["allocated_peak"]
        run.end()
        found.append(run)
    if peak is None:
        with memory.LiveBytes() as live:
            run = _Run(name, where)
            run.iterate(COMPARED + steps)
            run.end()
        peak = live.peak
    first, second = found
    return second, {
        "peak": peak,
        "ms": statistics.fmean(second.ms[COMPARED:] or second.ms),
        "repeats": first.bits() == second.bits(),
    }


def _medians(run: _Run, plain: _Run) -> Record:
    """Of all iterations after the first ones, and of the same ones in memory."""
    count = len(run.ms)
    if count <= FIRST:
        return {}
    return {
        "median_ms": statistics.median(run.ms[FIRST:]),
        "plain_median_ms": statistics.median(plain.ms[FIRST:count]),
        "plain_ms_all": plain.ms[:count],
        "planned_all": run.planned,
        "host_peak_all": run.host_peaks,
    }


def _at(name: str, where: Where, limit: int, steps: int, setting: Setting, plain: _Run) -> Record:
    """A run at a limit: how it went, or what its error says."""
    lms = package()
    row: Record = {"limit": limit, "error": None, "python_loop_ms": host.python_loop_ms()}
    with host.under_lms(lms, setting, limit, enforced=True):
        run = None
        try:
            run = _Run(name, where)
            run.iterate(COMPARED, lms)
            row["same_bits"] = run.bits() == plain.bits()
            run.iterate(steps, lms)
            half = -max(1, steps // 2)
            row["ms"] = statistics.fmean(run.ms[half:]) if steps else None
            row["plain_ms"] = statistics.fmean(plain.ms[half:])  # of the same batches
            row["ms_all"] = run.ms
            row |= _medians(run, plain)
        except torch.OutOfMemoryError as error:
            row["error"] = str(error)
            said = torch.ops.lms.need_of(str(error))
            row["need"] = {key: said[key] for key in sorted(said)}
            traceback.clear_frames(error.__traceback__)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
            traceback.clear_frames(error.__traceback__)
        stats = dict(lms.memory_stats())
        kept = ("plan.", "slices.", "bytes_", "remakes", "drops", "host.bytes.peak", "deferred.")
        row["stats"] = {key: stats[key] for key in stats if key.startswith(kept)}
        row["explained"] = lms.explain() if row["error"] is None and steps else None
        if run is not None:
            run.end()
    return row


def work(given: argparse.Namespace) -> Record:
    """One program, in this process."""
    name = given.program
    device = torch.device(given.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    where = Where(device, given.tiny)
    torch.backends.cudnn.benchmark = False
    row: Record = {"program": name}
    try:
        if not given.suite:
            _use_what_repeats(name, where)
        plain, row["plain"] = _plain(name, where, given.steps)
    except Missing as missing:
        return row | {"skipped": str(missing)}
    peak = row["plain"]["peak"]
    setting = _settings(where, given.plan_seconds)
    if "drawn" in given.modes:
        part = random.Random(f"{given.seed} {name}").uniform(LEAST, MOST)
        row["drawn"] = _at(name, where, int(peak * part), given.steps, setting, plain)
        row["drawn"]["part"] = part
    for mode, steps, extra in (("half", given.steps, {}), ("reactive", REACTIVE, {"plan": "off"})):
        if mode in given.modes:
            steps = min(steps, given.steps)
            setting = _settings(where, given.plan_seconds, **extra)
            row[mode] = _at(name, where, peak // 2, steps, setting, plain) | {"part": 0.5}
    if "smallest" in given.modes:
        limit, tries = max(int(peak * _SMALL), 1 << 16), []
        while len(tries) < _MOST_LIMITS:
            tries.append(_at(name, where, limit, 0, setting, plain))
            named = int(tries[-1].get("need", {}).get("least_limit", 0))
            if named <= limit:
                break
            limit = named
        row["smallest"] = tries[-1] | {
            "part": tries[-1]["limit"] / peak,
            "tried": [one["limit"] for one in tries],
            "operators": [one.get("need", {}).get("operator") for one in tries],
        }
    return row


def _line(row: Record) -> str:
    name = f"{row['program']:16s}"
    if "skipped" in row or "plain" not in row:
        return f"{name} {row.get('skipped') or row.get('error')}"
    plain = row["plain"]
    parts = [name, f"{plain['peak'] / 2**30:6.2f} GiB {plain['ms']:7.1f} ms"]
    parts.append("repeats" if plain["repeats"] else "does not repeat")
    for mode in MODES:
        if mode not in row:
            continue
        at = row[mode]
        said = at["error"].splitlines()[0][:150] if at["error"] else "runs"
        if not at["error"] and plain["repeats"]:
            said = "same bits" if at["same_bits"] else "OTHER BITS"
        if at.get("ms"):
            planned = at["stats"].get("plan.steps", 0)
            ms, plain_ms = at.get("median_ms", at["ms"]), at.get("plain_median_ms", at["plain_ms"])
            said += f", {ms / plain_ms - 1:+.0%}, {planned} steps planned"
        parts.append(f"| {mode} {at['part']:.0%}: {said}")
    return " ".join(parts)


def _one(name: str, given: argparse.Namespace) -> Record:
    """One program, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, __file__, "--program", name, "--out", str(out), "--modes"]
        command += [*given.modes, "--steps", str(given.steps), "--seed", str(given.seed)]
        command += ["--plan-seconds", str(given.plan_seconds)] + ["--tiny"] * given.tiny
        command += ["--device", given.device] if given.device else []
        command += ["--suite", given.suite] if given.suite else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.timeout)
        except subprocess.TimeoutExpired:
            row: Record = {"program": name, "error": f"not done after {given.timeout:.0f} s"}
        else:
            row = json.loads(out.read_text()) if out.exists() else {"program": name}
            if done.returncode:
                row["error"] = f"ended with {done.returncode}: {done.stderr[-1500:]}"
    print(_line(row), flush=True)
    return row


def main(argv: list[str] | None = None) -> int:
    """Carry out the command line; the program's exit status: whether a result was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=("loops",))
    parser.add_argument("--only", type=lambda text: text.split(","), help="default: all")
    parser.add_argument("--modes", nargs="+", choices=MODES)
    parser.add_argument("--jobs", type=int, default=1, help="programs at once")
    parser.add_argument("--steps", type=int, help="beyond those that are compared")
    parser.add_argument("--seed", type=int, default=1, help="of the limits that are drawn")
    parser.add_argument("--plan-seconds", type=float, default=2.0)
    parser.add_argument("--timeout", type=float, default=240, help="seconds a program")
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    loops = given.suite == "loops"
    given.modes = given.modes or (("half", "reactive") if loops else UNTIMED)
    given.only = given.only or (LOOPS if loops else list(PROGRAMS))
    if given.steps is None:
        given.steps = FIRST + OF_LOOPS - COMPARED if loops else 24
    if given.program:
        given.out.write_text(json.dumps(work(given)))
        return 0
    with ThreadPoolExecutor(given.jobs) as pool:
        rows: list[Record] = list(pool.map(lambda name: _one(name, given), given.only))
    if given.out:
        commit, dirty = records.commit()
        kind = "cpu" if (given.device or "").startswith("cpu") else "cuda"
        facts: dict[str, Any] = {"machine": records.machine(kind), "commit": commit}
        records.write(facts | {"commit_dirty": dirty, "seed": given.seed, "rows": rows}, given.out)
    wrong = [
        row["program"]
        for row in rows
        for mode in MODES
        if row.get("plain", {}).get("repeats") and row.get(mode, {}).get("same_bits") is False
    ]
    short = [row["program"] for row in rows if row.get("drawn", {}).get("error")]
    parts = [row["smallest"]["part"] for row in rows if not row.get("smallest", {}).get("error", 1)]
    print(f"{len(rows)} programs, {len(short)} did not run at the drawn limit: {' '.join(short)}")
    if parts:
        print(f"smallest limit: median {statistics.median(parts):.1%} of the peak")
    print(f"wrong: {' '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
