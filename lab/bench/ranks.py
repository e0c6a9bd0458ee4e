"""Training on several GPUs under limits: whether it runs, with which bits, how fast.

    python lab/bench/ranks.py --gpus 2 --out ranks.json
    python lab/bench/ranks.py --gpus 2 --only llama_fsdp,resnet50_ddp
    python lab/bench/ranks.py --gpus 2 --device cpu --tiny        over gloo

Each program runs in processes of its own, one a GPU, which know each other as torchrun's do: twice
plainly, since only what repeats can be compared, then under LMS at a part of the rank's peak, which
the allocator's memory fraction enforces, too. Losses and weights (of FSDP: the rank's shards) are
compared after the same number of steps. A program that is not done in time is ended; its record has
what was done until then, and where each rank was.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import faulthandler
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

from bench import host, memory, records, weights
from bench.packages import Missing
from bench.program import SEED, Program, Where
from bench.programs_of_ranks import PROGRAMS
from bench.records import Record
from bench.setting import Setting, traffic
from bench.steps import StepOptions, package

# The last steps of a run: those that are timed.
TIMED = 8
# Steps between two moments in which all ranks wait until their plans are made.
ROUND = 4
# Of what a rank writes to standard error, and of its stacks, the record keeps this much.
_TAIL = 6000
# How long the others may go on when one rank has failed, and how soon before its end a program
# that hangs says where it is.
_GRACE, _EARLY = 8.0, 10.0
_GIB, _MIB = 2**30, 2**20


class _Peers:
    """The other ranks, where they are met without a collective: that would be part of the step."""

    def __init__(self, seconds: float) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            self.size,
            is_master=self.rank == 0,
            timeout=datetime.timedelta(seconds=seconds),
        )
        self._meetings = 0

    def meet(self) -> None:
        """Waits until all ranks are here."""
        self._meetings += 1
        self.store.set(f"bench/{self._meetings}/{self.rank}", "here")
        self.store.wait([f"bench/{self._meetings}/{rank}" for rank in range(self.size)])

    def leave(self) -> None:
        """Says that this rank will not be back; the first waits for all."""
        self.store.set(f"bench/left/{self.rank}", "gone")
        if self.rank == 0:
            self.store.wait([f"bench/left/{rank}" for rank in range(self.size)])


class _Rank:
    """One rank of a program."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._out = Path(given.rank_out)
        self._place = os.open(self._out.with_suffix(".step"), os.O_WRONLY | os.O_CREAT)
        self._ranks = PROGRAMS[given.program]
        self._steps: int = given.steps or self._ranks.steps
        self._peers = _Peers(given.timeout)
        cpu = given.device == "cpu"
        self._device = torch.device("cpu" if cpu else f"cuda:{os.environ['LOCAL_RANK']}")
        if not cpu:
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            "gloo" if cpu else "nccl",
            store=self._peers.store,
            rank=self._peers.rank,
            world_size=self._peers.size,
            timeout=datetime.timedelta(seconds=given.timeout),
            device_id=None if cpu else self._device,
        )
        self.row: Record = {"rank": self._peers.rank}
        self._begun = time.perf_counter()

    def _save(self, phase: str) -> None:
        self.row["phase"] = phase
        partial = self._out.with_suffix(".partial")
        partial.write_text(json.dumps(self.row))
        partial.replace(self._out)
        print(f"{time.perf_counter() - self._begun:6.1f} s: {phase}", file=sys.stderr, flush=True)

    def _at(self, step: int) -> None:
        os.pwrite(self._place, f"{step:6d}".encode(), 0)

    def _build(self) -> Program:
        torch.manual_seed(SEED)
        return self._ranks.make(Where(self._device, self._given.tiny))

    def _iterate(self, program: Program, lms: Any = None) -> Record:
        """All steps of a run, none of which waits for another; what is compared, and the times."""
        clock, losses, before, states = host.Clock(self._device), [], {}, {}
        for number in range(self._steps):
            self._at(number)
            if number % ROUND == 0 and 0 < number <= self._steps - TIMED:
                host.synchronize(self._device)
                if lms and lms.memory_stats(str(self._device))["plan.shapes"] > 0:
                    lms.wait_for_plan(str(self._device))
                if lms:
                    states[number] = torch.ops.lms.plan_state(str(self._device))
                self._peers.meet()
            if lms and number == self._steps - TIMED:
                before = dict(lms.memory_stats(str(self._device)))
            clock.mark()
            losses.append(program.step(number))
        clock.mark()
        self._at(self._steps)
        host.synchronize(self._device)
        laps = clock.laps_ms()
        row: Record = {"ms": statistics.median(laps[-TIMED:]), "ms_all": laps}
        if lms:  # before anything is read, which would be another step
            row |= self._said(lms) | {"states": states}
            after = row["stats"]
            row["per_step"] = traffic(before, after, min(TIMED, self._steps))
            row["planned_of_timed"] = after["plan.steps"] - before.get("plan.steps", 0)
        row["losses"] = [float(loss).hex() for loss in losses]
        return row

    def _plain(self) -> Record:
        memory.release(self._device)
        program = self._build()
        memory.reset_peaks(self._device)  # what counts is training
        row = self._iterate(program)
        row |= memory.read_peaks(self._device)
        if self._ranks.managed:
            row["weights"] = weights.fingerprint(program.modules)
        return row

    def _counted_peak(self) -> int:
        """The plain peak where the allocator keeps no statistics: LMS's, of a step that fits."""
        lms = package()
        with self._under_lms(lms, 2**40):
            program = self._build()
            for number in range(2):
                program.step(number)
            return int(lms.memory_stats(str(self._device))["device.bytes.peak"])

    def _under_lms(self, lms: Any, limit: int) -> contextlib.AbstractContextManager[None]:
        setting = Setting(
            "",
            StepOptions(),
            self._device,
            plan_seconds=self._given.plan_seconds,
            min_block="8KiB" if self._given.tiny else None,
        )
        return host.under_lms(lms, setting, limit, enforced=True)

    def _limited(self, limit: int) -> None:
        lms = package()
        memory.release(self._device)
        memory.reset_peaks(self._device)
        row = self.row["lms"] = {"limit": limit, "error": None}
        if self._device.type == "cuda":
            row["left_by_plain"] = torch.cuda.memory_allocated(self._device)
        with self._under_lms(lms, limit):
            try:
                program = self._build()
                self._save("under LMS: built")
                row |= self._iterate(program, lms)
                row["weights"] = weights.fingerprint(program.modules)
                self._compare(row)
                del program
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"
                row["where"] = traceback.format_exc()[-_TAIL:]
                row |= self._said(lms)
                self._save("failed")
                # At once: to wait for the device would be to wait for the other ranks.
                os._exit(1)

    def _compare(self, row: Record) -> None:
        plain = self.row["plain"]
        row["same_losses"] = row["losses"] == plain["losses"]
        row["same_weights"] = row["weights"] == plain["weights"]
        self._save("under LMS: compared")

    def _said(self, lms: Any) -> Record:
        device = str(self._device)
        row: Record = {"stats": dict(lms.memory_stats(device)), "explained": lms.explain(device)}
        if row["stats"].get("plan.steps", 0) == 0:
            row["summary"] = lms.memory_summary(device)
        return row | memory.read_peaks(self._device)

    def work(self) -> None:
        """All runs; the record has what was done, whatever happens."""
        self._save("plain")
        self.row["plain"] = self._plain()
        if not self._ranks.managed:
            self._save("done")
            return
        self._save("plain again")
        again = self._plain()
        kept = ("losses", "weights")
        self.row["repeats"] = all(again[key] == self.row["plain"][key] for key in kept)
        self.row["again_ms"] = again["ms"]
        peak = self.row["plain"]["allocated_peak"] or self._counted_peak()
        self.row["plain"]["allocated_peak"] = peak
        self._peers.meet()
        self._save("under LMS")
        self._limited(int(peak / self._given.ratio))
        self._save("done")

    def end(self) -> None:
        """Leaves; the rank that keeps what the others meet by is the last."""
        dist.destroy_process_group()
        self._peers.leave()


def _watch(device: str, seconds: float, stacks: Path) -> None:
    """After so long, what LMS says of the device goes to standard error; then, from a thread that
    needs nobody's leave, it is written to `stacks` where each thread of Python is."""

    def say() -> None:
        with contextlib.suppress(Exception):
            lms = sys.modules["torch_lms"]
            print(lms.memory_summary(device), lms.explain(device), file=sys.stderr, flush=True)

    timer = threading.Timer(max(1.0, seconds - 2), say)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds, file=stacks.open("w"))


def work(given: argparse.Namespace) -> int:
    """One rank, in this process."""
    _watch(
        "cpu" if given.device == "cpu" else f"cuda:{os.environ['LOCAL_RANK']}",
        max(1.0, given.deadline - time.time() - _EARLY),
        Path(given.rank_out).with_suffix(".stacks"),
    )
    strict = PROGRAMS[given.program].strict and given.device != "cpu"
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # As for the single steps: the flash kernel adds in a fixed order, cuDNN's does not.
    torch.backends.cuda.enable_cudnn_sdp(False)
    rank = _Rank(given)
    try:
        rank.work()
    except Missing as missing:
        rank.row["skipped"] = str(missing)
        rank._save("skipped")
    except Exception:
        rank.row["error"] = traceback.format_exc()[-_TAIL:]
        rank._save("failed")
    failed = rank.row["phase"] == "failed"
    if not failed:
        rank.end()
    sys.stderr.flush()
    # Not by way of the interpreter's end: where a rank has failed, that would wait for the others.
    os._exit(1 if failed else 0)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _group(name: str, given: argparse.Namespace, folder: Path) -> Iterator[list[Any]]:
    """The processes of a program; at the end none is left."""
    command = [sys.executable, "-W", "ignore", __file__, "--program", name]
    command += ["--timeout", str(given.timeout), "--ratio", str(given.ratio)]
    command += ["--plan-seconds", str(given.plan_seconds), "--device", given.device]
    command += ["--tiny"] * given.tiny + ["--deadline", str(time.time() + given.timeout)]
    command += ["--steps", str(given.steps)] if given.steps else []
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    common |= {key: str(given.gpus) for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    # Not one, as with torchrun: optimizers that run on the host want more.
    threads = str(max(1, len(os.sched_getaffinity(0)) // given.gpus))
    processes = []
    try:
        for rank in range(given.gpus):
            variables = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            variables.setdefault("OMP_NUM_THREADS", threads)
            with (folder / f"{rank}.err").open("w") as errors:
                processes.append(
                    subprocess.Popen(
                        [*command, "--rank-out", str(folder / f"{rank}.json")],
                        env=variables,
                        stdout=errors,
                        stderr=errors,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(processes: list[Any], seconds: float) -> str | None:
    """Until all have ended; else why that was not waited for any longer."""
    end, why = time.monotonic() + seconds, f"not done after {seconds:.0f} s"
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end:
            return why
        failed = [rank for rank, process in enumerate(processes) if process.poll()]
        if failed and not why.startswith("rank"):
            end = min(end, time.monotonic() + _GRACE)
            why = f"rank {failed[0]} failed, and others went on"
        time.sleep(0.1)
    return None


def _rank_row(folder: Path, rank: int, status: int | None) -> Record:
    out = folder / f"{rank}.json"
    row: Record = json.loads(out.read_text()) if out.exists() else {"rank": rank}
    said = {"step": "", "stacks": "", "err": ""}
    for kind in said:
        file = out.with_suffix(f".{kind}")
        said[kind] = file.read_text(errors="replace")[-_TAIL:].strip() if file.exists() else ""
    row |= {"status": status, "step": said["step"] or "none", "stacks": said["stacks"]}
    return row | {"stderr": said["err"]}


def launch(name: str, given: argparse.Namespace) -> Record:
    """One program, in processes of its own."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with _group(name, given, folder) as processes:
            late = _wait(processes, given.timeout)
            statuses = [process.poll() for process in processes]
        rows = [_rank_row(folder, rank, status) for rank, status in enumerate(statuses)]
    row: Record = {"program": name, "seconds": time.monotonic() - begun, "ranks": rows}
    return row | _of_all(rows, late)


def _of_all(rows: list[Record], late: str | None) -> Record:
    """What the ranks' records say together: the slowest counts, and the one that takes most."""
    found: Record = {"error": late}
    skipped = [row["skipped"] for row in rows if "skipped" in row]
    if skipped:
        return {"skipped": skipped[0]}
    errors = [row["lms"]["error"] for row in rows if row.get("lms", {}).get("error")]
    errors += [row["error"] for row in rows if row.get("error")]
    ended = [row for row in rows if row.get("phase") not in ("done", "failed")]
    errors += [f"rank {row['rank']} ended with {row['status']}" for row in ended if row["status"]]
    # One whose others have been ended at the deadline fails as well.
    if errors and not (late or "").startswith("not done"):
        found["error"] = errors[0] + (f" ({late})" if late else "")
    if all("plain" in row for row in rows):
        found["plain_ms"] = max(row["plain"]["ms"] for row in rows)
        peaks = [row["plain"]["allocated_peak"] for row in rows]
        found["peak"] = None if None in peaks else max(peaks)
    if all("repeats" in row for row in rows):
        found["repeats"] = all(row["repeats"] for row in rows)
    limited = [row["lms"] for row in rows if row.get("lms", {}).get("ms")]
    if len(limited) == len(rows):
        found["ms"] = max(row["ms"] for row in limited)
        found["overhead"] = found["ms"] / found["plain_ms"] - 1
        found["same_bits"] = all(
            row.get("same_losses") and row.get("same_weights") for row in limited
        )
        found["plan_steps"] = [row["stats"]["plan.steps"] for row in limited]
        found["planned_of_timed"] = [row["planned_of_timed"] for row in limited]
        for key in ("bytes_out", "bytes_in", "bytes_recomputed"):
            found[key] = max(row["per_step"][key] for row in limited)
    return found


def _bytes(count: int) -> str:
    return f"{count / _GIB:.2f} GiB" if count > _GIB / 8 else f"{count / _MIB:.2f} MiB"


def _line(row: Record, given: argparse.Namespace) -> str:
    parts = [f"{row['program']:22s} {row['seconds']:3.0f} s"]
    if "skipped" in row:
        return f"{parts[0]} {row['skipped']}"
    if row.get("plain_ms"):
        peak = _bytes(row["peak"]) if row.get("peak") else ""
        parts.append(f"{peak} {row['plain_ms']:.1f} ms")
    if "repeats" in row:
        parts.append("repeats" if row["repeats"] else "does not repeat")
    if row.get("ms"):
        said = "same bits" if row["same_bits"] else "OTHER BITS"
        if not row["repeats"] and not row["same_bits"]:
            said = "bits cannot be compared"
        moved = ", ".join(
            f"{_bytes(row[key])} {what}"
            for key, what in (
                ("bytes_out", "out"),
                ("bytes_in", "in"),
                ("bytes_recomputed", "computed again"),
            )
        )
        planned = "/".join(map(str, row["plan_steps"]))
        timed = "/".join(map(str, row["planned_of_timed"]))
        parts.append(
            f"| 1/{given.ratio:g} of it: {said}, {row['ms']:.1f} ms, {row['overhead']:+.0%}"
        )
        parts.append(f"planned {planned}, of the last {TIMED} {timed}; {moved}")
    if row.get("error"):
        where = ", ".join(
            f"rank {one['rank']}: {one.get('phase', 'start')}, step {one['step']}"
            for one in row["ranks"]
        )
        parts.append(f"| ERROR {' '.join(row['error'].split())[-400:]} ({where})")
    return " ".join(parts)


def main(argv: list[str] | None = None) -> int:
    """Carry out the command line; the program's exit status: whether a result was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=2, help="ranks")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PROGRAMS))
    parser.add_argument("--ratio", type=float, default=2.0, help="the peak over the limit")
    parser.add_argument("--steps", type=int, help="of each run (default: the program's own)")
    parser.add_argument("--plan-seconds", type=float, default=2.0)
    parser.add_argument("--timeout", type=float, default=75, help="seconds a program")
    parser.add_argument("--budget", type=float, help="seconds after which no program begins")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--rank-out", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.program:
        return work(given)
    for name in given.only:
        if name not in PROGRAMS:
            parser.error(f"{name} is none of {', '.join(PROGRAMS)}")
    commit, dirty = records.commit()
    facts: Record = {"machine": records.machine(given.device), "commit": commit}
    facts |= {"commit_dirty": dirty, "gpus": given.gpus, "ratio": given.ratio}
    begun, rows = time.monotonic(), []
    for name in given.only:
        if given.budget and time.monotonic() - begun > given.budget:
            rows.append({"program": name, "seconds": 0, "skipped": "no time was left"})
        else:
            rows.append(launch(name, given))
        print(_line(rows[-1], given), flush=True)
        if given.out:  # what there is, should this one be ended too
            records.write(facts | {"rows": rows}, given.out)
    wrong = [row["program"] for row in rows if row.get("repeats") and row.get("same_bits") is False]
    failed = [row["program"] for row in rows if row.get("error")]
    print(f"{len(rows)} programs; failed: {' '.join(failed) or 'none'}; ", end="")
    print(f"wrong: {' '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
