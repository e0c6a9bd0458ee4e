"""What a step costs the host: plain, under LMS where all fits, and planned, in one process.

Each is measured free-running (nothing waits between the steps) and with the loss read in every
step, as most training loops do. Times of one machine's cores say little about another's: the time
of a loop of Python stands beside every row.
"""

from __future__ import annotations

import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from bench import memory
from bench.records import Record
from bench.setting import Setting
from bench.step import TrainStep
from bench.timing import no_garbage_collection

STEPS = 20
WARMUP = 4
# Where everything is to fit, and half of it: parts of the plain step's peak.
FITS, RATIO = 1.5, 2.0
# Steps between two looks at the statistics, and when to give up.
ROUND, MOST_ROUNDS = 5, 12
_WATCHED = ("steps", "divergences", "refined")


def python_loop_ms() -> float:
    """The median of five runs of a fixed loop of Python."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        total = 0
        for i in range(200_000):
            total += i
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def _cpu() -> dict[str, float]:
    """Seconds of processor time of the process so far, and of this thread."""
    now = os.times()
    return {
        "cpu": time.process_time(),
        "user": now.user,
        "system": now.system,
        "thread": time.thread_time(),
    }


def _cpu_fields(before: dict[str, float], steps: int) -> Record:
    after = _cpu()
    return {f"{key}_ms": (after[key] - before[key]) * 1e3 / steps for key in before}


class Clock:
    """The moments between steps: on the device's own clock, where it has one."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._moments: list[Any] = []

    def mark(self) -> None:
        """Now: once the device has done what it was told so far."""
        if self._cuda:
            moment = torch.cuda.Event(enable_timing=True)
            moment.record()
        else:
            moment = time.perf_counter()
        self._moments.append(moment)

    def laps_ms(self) -> list[float]:
        """The times between the moments; the device must have passed them."""
        pairs = zip(self._moments, self._moments[1:], strict=False)
        if self._cuda:
            return [before.elapsed_time(after) for before, after in pairs]
        return [(after - before) * 1e3 for before, after in pairs]


def synchronize(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free(step: TrainStep, count: int, device: torch.device) -> Record:
    """`count` steps, none of which waits for another."""
    clock = Clock(device)
    synchronize(device)
    cpu, start = _cpu(), time.perf_counter()
    for _ in range(count):
        clock.mark()
        step()
    clock.mark()
    issued = time.perf_counter()
    synchronize(device)
    wall = (time.perf_counter() - start) * 1e3 / count
    fields = _cpu_fields(cpu, count)
    laps = clock.laps_ms()
    return {
        "step_ms": statistics.median(laps),
        "step_ms_all": laps,
        "wall_ms": wall,
        "issued_ms": (issued - start) * 1e3 / count,
    } | fields


def _synced(step: TrainStep, count: int, device: torch.device) -> Record:
    """`count` steps, each of which reads its loss. `issued_ms`: until the host had asked for all of
    a step, from an idle device on."""
    laps, issued, losses = [], [], []
    synchronize(device)
    cpu = _cpu()
    for _ in range(count):
        start = time.perf_counter()
        loss = step()
        issued.append((time.perf_counter() - start) * 1e3)
        losses.append(loss.item())
        laps.append((time.perf_counter() - start) * 1e3)
    fields = _cpu_fields(cpu, count)
    return {
        "step_ms": statistics.median(laps),
        "step_ms_all": laps,
        "wall_ms": statistics.fmean(laps),
        "issued_ms": statistics.median(issued),
        "losses": losses,
    } | fields


# Growth of LMS's statistics, per step.
_COUNTED = (
    "operators",
    "evictions",
    "evictions.clean",
    "page_ins",
    "drops",
    "remakes",
    "replays.fused",
    "bytes_out",
    "bytes_in",
    "bytes_remade",
    "plan.steps",
    "plan.divergences",
    "alloc.driver",
    "arena.joins",
    "arena.misplaced",
)


def settle(lms: ModuleType, device: torch.device, one: Callable[[], Any]) -> int:
    """Runs `one` step after another until they are carried out under a plan that was made with the
    times of planned steps. Returns how many it took."""
    first = stats = dict(lms.memory_stats())
    for rounds in range(1, MOST_ROUNDS + 1):
        before = stats
        for _ in range(ROUND):
            one()
        synchronize(device)
        if lms.memory_stats()["plan.shapes"] > 0:
            lms.wait_for_plan(str(device))
        stats = dict(lms.memory_stats())
        grown = {key: stats[f"plan.{key}"] - before[f"plan.{key}"] for key in _WATCHED}
        followed = grown["steps"] >= ROUND and not grown["divergences"] and not grown["refined"]
        followed = followed and not stats.get("plan.on_trial")  # there are older builds without
        if followed and (rounds == 1 or stats["plan.refined"] > first["plan.refined"]):
            return rounds * ROUND
    raise RuntimeError(
        f"{stats['plan.steps'] - first['plan.steps']} of {MOST_ROUNDS * ROUND} steps were carried "
        f"out under a plan, {stats['plan.divergences'] - first['plan.divergences']} turned out to "
        "be others"
    )


def _row(
    step: TrainStep, setting: Setting, lms: ModuleType | None = None, *, planned: bool = False
) -> Record:
    """Both ways of running a step; under LMS, with what LMS did in each. Reading the loss makes
    another step of it, which is planned for itself."""
    count, device = setting.steps or STEPS, setting.device
    row: Record = {"python_loop_ms": python_loop_ms()}
    for way, run, one in (
        ("free", _free, step),
        ("synced", _synced, lambda: step().item()),
    ):
        settled = settle(lms, device, one) if lms and planned else 0
        before = dict(lms.memory_stats()) if lms else {}
        with no_garbage_collection():
            row[way] = run(step, count, device)
        if not lms:
            continue
        after = dict(lms.memory_stats())
        counted = {key: (after[key] - before[key]) / count for key in _COUNTED if key in after}
        row[way] |= {
            "settled_after_steps": settled,
            "predicted_ms": after["plan.predicted_us"] / 1e3 or None,
            "per_step": counted,
            "stats": after,
        }
    return row


def _warm_up(step: TrainStep, setting: Setting) -> list[float]:
    return [step().item() for _ in range(setting.warmup or WARMUP)]


def _plain(setting: Setting) -> Record:
    step = setting.build()
    losses = _warm_up(step, setting)
    row = _row(step, setting)
    peak = memory.read_peaks(setting.device)["allocated_peak"]
    if peak is None:
        with memory.LiveBytes() as live:
            step()
        peak = live.peak
    return row | {"allocated_peak": peak, "first_losses": losses}


@contextmanager
def under_lms(lms: ModuleType, setting: Setting, limit: int, *, enforced: bool) -> Iterator[None]:
    """LMS with a limit, to which the caching allocator is held too if that is wanted."""
    device = setting.device
    enforced = enforced and device.type == "cuda"
    if enforced:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    extra: Record = {} if setting.min_block is None else {"min_block": setting.min_block}
    if device.type != "cuda":
        extra["recompute"] = True
    extra |= setting.enable
    lms.enable(
        limit=limit,
        device=str(device),
        plan_cache="off",
        plan_seconds=setting.plan_seconds,
        **extra,
    )
    try:
        yield
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # which hold the step
        raise
    finally:
        memory.release(device)
        if enforced:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        lms.disable()


def _fits(lms: ModuleType, setting: Setting, peak: int) -> Record:
    with under_lms(lms, setting, int(peak * FITS), enforced=False):
        step = setting.build()
        losses = _warm_up(step, setting)
        row = _row(step, setting, lms) | {"first_losses": losses}
        del step
        return row


def _planned(lms: ModuleType, setting: Setting, peak: int) -> Record:
    limit = int(peak / RATIO)
    with under_lms(lms, setting, limit, enforced=True):
        step = setting.build()
        losses = _warm_up(step, setting)
        row = _row(step, setting, lms, planned=True)
        del step
        return row | {"limit_bytes": limit, "first_losses": losses}


def _attempt(measure: Callable[[], Record]) -> Record:
    """A row, or why there is none: the others may succeed."""
    try:
        return measure()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def measure(lms: ModuleType, setting: Setting) -> Record:
    """The fields of a record: those of the planned run, free-running; all rows in `host`."""
    plain = _plain(setting)
    rows: dict[str, Record] = {"plain": plain}
    for name, run in (("fits", _fits), ("planned", _planned)):
        memory.release(setting.device)
        memory.reset_peaks(setting.device)

        def one(run: Callable[..., Record] = run) -> Record:
            return run(lms, setting, plain["allocated_peak"])

        rows[name] = _attempt(one)
        memory.release(setting.device)
    last = rows["planned"]
    failed = [f"{name}: {row['error']}" for name, row in rows.items() if "error" in row]
    base, free = plain["free"]["step_ms"], last.get("free", {})
    return {
        "host": rows,
        "in_memory_ms": base,
        "step_ms": free.get("step_ms"),
        "step_ms_all": free.get("step_ms_all"),
        "limit_bytes": last.get("limit_bytes"),
        "ratio": RATIO,
        "predicted_ms": free.get("predicted_ms"),
        "planned": bool(free.get("predicted_ms")),
        "allocated_peak": plain["allocated_peak"],
        "losses": None,
        "error": "; ".join(failed) or None,
    }
