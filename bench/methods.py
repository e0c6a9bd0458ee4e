"""Ways to run a step, and what each measures: in memory, under LMS, and what users do today.

A method takes a `Setting` and returns the fields of a record that it knows. Each builds its own
fresh step, so that all of them start from the same weights and see the same data.
"""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from bench import memory, recording
from bench.ballast import Ballast
from bench.records import Record, compare_losses
from bench.steps import StepOptions, TrainStep, build
from bench.steps import package as _lms
from bench.timing import Timed, run_steps, step_count

PAIRS = 6
PAIR_STEPS = 6
# lms-swap: planned steps to wait for, timed ones, and when to wait no longer.
PLANNED_STEPS = 8
TIMED_STEPS = 6
MOST_STEPS = 40
MOST_SECONDS = 30.0


@dataclass
class Setting:
    """What a method needs to know."""

    step: str
    options: StepOptions
    device: torch.device
    limit_bytes: int | None = None
    # How much the caching allocator may reserve, over the limit; None: not enforced.
    headroom: float | None = 1.0
    min_block: str | None = None
    # For lms-swap: the steps under a plan before the timed ones.
    warmup: int | None = None
    steps: int | None = None
    # Most time that a search for a plan may take.
    plan_seconds: float = 5.0
    # Where lms-swap leaves the trace of the step.
    trace: Path | None = None
    # What makes the device keep to the limit.
    ballast: Ballast | None = None
    # The plain run's record, if there is one.
    reference: Record | None = None

    def build(self) -> TrainStep:
        """A fresh step."""
        return build(self.step, self.options, self.device)


def _warm_up(setting: Setting, step: TrainStep, count: int) -> tuple[Timed, int]:
    """Warm-up steps, and the number of timed ones to follow."""
    loop, sample = step.loop, setting.ballast and setting.ballast.sample
    count = setting.warmup or (loop.warmup if loop else count)
    warm = run_steps(step, count, setting.device, sample)
    return warm, setting.steps or (loop.steps if loop else step_count(warm.ms[-1]))


def _typical_ms(step: TrainStep, timed: Timed) -> float:
    return timed.mean_ms if step.loop else timed.median_ms


def _measured(step: TrainStep, timed: Timed, warm: Timed) -> Record:
    return {
        "step_ms": _typical_ms(step, timed),
        "step_ms_all": timed.ms,
        "losses": warm.losses + timed.losses,
    }


def _peaks(step: TrainStep, device: torch.device) -> Record:
    """The peaks; where the device keeps no statistics, of one step more whose bytes are counted."""
    peaks = memory.read_peaks(device)
    if peaks["allocated_peak"] is None:
        with memory.LiveBytes() as live:
            for _ in range(step.loop.cycle if step.loop else 1):
                step()
        peaks["allocated_peak"] = live.peak
    return peaks


def plain(setting: Setting) -> Record:
    """In memory; and once more, to see whether the losses repeat."""
    device = setting.device
    step = setting.build()
    warm, count = _warm_up(setting, step, 4)
    timed = run_steps(step, count, device)
    fields = _measured(step, timed, warm) | _peaks(step, device)
    in_memory_ms = fields["step_ms"]
    del step
    memory.release(device)
    again = run_steps(setting.build(), len(fields["losses"]), device)
    repeats = again.losses == fields["losses"]
    fields |= {
        "ratio": 1.0,
        "in_memory_ms": in_memory_ms,
        "bytes_out": 0,
        "bytes_in": 0,
        "bytes_recomputed": 0,
        "plain_deterministic": repeats,
        "losses_compared": len(again.losses),
        "bit_identical": True if repeats else None,
    }
    return fields


def checkpoint(setting: Setting) -> Record:
    """Every block of the model recomputed in the backward pass."""
    step = setting.build()
    step.set_checkpointing(True)
    warm, count = _warm_up(setting, step, 4)
    timed = run_steps(step, count, setting.device)
    return (
        _measured(step, timed, warm)
        | _peaks(step, setting.device)
        | {"bytes_out": 0, "bytes_in": 0}
    )


class _CountingOffload(saved_tensors_hooks):
    """`save_on_cpu(pin_memory=True)` that adds up what it moves."""

    def __init__(self, moved: dict[str, int]) -> None:
        offload = save_on_cpu(pin_memory=True)

        def pack(tensor: torch.Tensor) -> Any:
            moved["bytes_out"] += tensor.nbytes
            return offload.pack_hook(tensor)

        def unpack(packed: Any) -> torch.Tensor:
            tensor = offload.unpack_hook(packed)
            moved["bytes_in"] += tensor.nbytes
            return tensor

        super().__init__(pack, unpack)


def offload(setting: Setting) -> Record:
    """PyTorch's `save_on_cpu(pin_memory=True)` around the forward pass, at its own peak."""
    step = setting.build()
    step.around_forward = lambda: save_on_cpu(pin_memory=True)
    warm, count = _warm_up(setting, step, 3)
    # One step more, outside the timed ones, counts the bytes.
    moved = {"bytes_out": 0, "bytes_in": 0}
    step.around_forward = lambda: _CountingOffload(moved)
    warm.extend(run_steps(step, 1, setting.device))
    step.around_forward = lambda: save_on_cpu(pin_memory=True)
    timed = run_steps(step, count, setting.device)
    return (
        _measured(step, timed, warm)
        | memory.read_peaks(setting.device)
        | moved
        | {"bytes_recomputed": 0}
    )


def _enable(lms: ModuleType, setting: Setting, **extra: Any) -> None:
    if setting.min_block is not None:
        extra["min_block"] = setting.min_block
    lms.enable(limit=setting.limit_bytes, device=str(setting.device), **extra)


def _disable(lms: ModuleType) -> None:
    if lms.is_enabled():
        lms.disable()


def _traffic(before: Record, after: Record, steps: int) -> Record:
    keys = ("bytes_out", "bytes_in", "bytes_recomputed")
    return {key: round((after.get(key, 0) - before.get(key, 0)) / steps) for key in keys}


def _engine_peaks(stats: Record, peaks: Record) -> Record:
    """`peaks` with what the engine itself holds; it knows what PyTorch's statistics do not."""
    out = dict(peaks)
    if out["allocated_peak"] is None:
        out["allocated_peak"] = stats["device.bytes.peak"]
    # Pinned memory that the engine owns does not come from PyTorch's host allocator.
    out["host_peak"] = stats.get("host.bytes.peak", 0) + (peaks["host_peak"] or 0)
    out["file_peak"] = stats.get("file.bytes.peak", 0)
    return out


def lms_fits(setting: Setting) -> Record:
    """LMS on with a limit that does not bind: blocks of steps with it and without it alternate.

    The overhead is the median over pairs of neighbouring blocks, which a slow drift of the
    machine's clocks does not touch.
    """
    lms, device = _lms(), setting.device
    step = setting.build()
    steps = setting.steps or PAIR_STEPS
    every = run_steps(step, setting.warmup or 3, device)
    with_lms, without, ratios = Timed(), Timed(), []
    traffic = {"bytes_out": 0, "bytes_in": 0, "bytes_recomputed": 0}
    stats: Record = {}

    def plain_block() -> Timed:
        block = run_steps(step, steps, device)
        every.losses.extend(block.losses)
        return block

    def lms_block() -> Timed:
        nonlocal stats
        _enable(lms, setting)
        try:
            every.losses.extend(run_steps(step, 1, device).losses)
            before = dict(lms.memory_stats())
            block = run_steps(step, steps, device)
            stats = dict(lms.memory_stats())
        finally:
            _disable(lms)
        every.losses.extend(block.losses)
        for key, value in _traffic(before, stats, steps).items():
            traffic[key] = max(traffic[key], value)
        every.losses.extend(run_steps(step, 1, device).losses)
        return block

    for index in range(PAIRS):
        # Which of the two comes first changes from pair to pair; LMS is first in the first, so
        # that its losses are among those compared with the plain run's.
        if index % 2 == 0:
            on, off = lms_block(), plain_block()
        else:
            off, on = plain_block(), lms_block()
        ratios.append(on.median_ms / off.median_ms)
        with_lms.extend(on)
        without.extend(off)
    return (
        {
            "step_ms": with_lms.median_ms,
            "step_ms_all": with_lms.ms,
            "losses": every.losses,
            "in_memory_ms": without.median_ms,
            "overhead": statistics.median(ratios) - 1,
            "pair_ratios": ratios,
            "limit_bytes": stats["limit"],
            "ratio": 1.0,
            "stats": stats,
        }
        | traffic
        | _engine_peaks(stats, memory.read_peaks(device))
    )


def _under_limit(
    setting: Setting, measure: Callable[[ModuleType, Setting, TrainStep], Record], **options: Any
) -> Record:
    """What `measure` finds under LMS with a limit, to which (times `headroom`) the caching
    allocator is held as well. Afterwards the process is as before.

    Errors have an attribute `fields`: what a record can say nevertheless.
    """
    if setting.limit_bytes is None:
        raise ValueError("this method needs a limit, or a ratio and a plain run to apply it to")
    lms, device = _lms(), setting.device
    fraction_bytes = None
    if device.type == "cuda" and setting.headroom is not None:
        fraction_bytes = int(setting.limit_bytes * setting.headroom)
    _set_fraction(device, fraction_bytes)
    try:
        _enable(lms, setting, **options)
        try:
            fields = measure(lms, setting, setting.build())
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # which hold the step
            if not isinstance(error, NoPlan):
                error.fields = {"stats": dict(lms.memory_stats())}
            raise
        finally:
            # Disabling brings everything back, for which there must be room.
            memory.release(device)
            if fraction_bytes is not None:
                _set_fraction(device, None)
            _disable(lms)
    finally:
        # LMS, too, puts back what it found.
        if fraction_bytes is not None:
            _set_fraction(device, None)
    return fields | {"fraction_bytes": fraction_bytes}


def _set_fraction(device: torch.device, count: int | None) -> None:
    """How much of the device the caching allocator may reserve; None: all of it."""
    if device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    fraction = 1.0 if count is None else min(1.0, count / total)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def _reactive(lms: ModuleType, setting: Setting, step: TrainStep) -> Record:
    device, sample = setting.device, setting.ballast and setting.ballast.sample
    warm, count = _warm_up(setting, step, 4)
    before = dict(lms.memory_stats())
    timed = run_steps(step, count, device, sample)
    stats = dict(lms.memory_stats())
    return (
        _measured(step, timed, warm)
        | _traffic(before, stats, len(timed.ms))
        | _engine_peaks(stats, memory.read_peaks(device))
        | {"stats": stats}
    )


def lms_reactive(setting: Setting) -> Record:
    """LMS under a limit, without plans."""
    return _under_limit(setting, _reactive, plan="off")


class NoPlan(RuntimeError):
    """No plan came, or none was followed."""

    def __init__(self, message: str, fields: Record) -> None:
        super().__init__(message)
        self.fields = fields


class _Watch:
    """To be called after each step: counts those carried out under a plan from end to end."""

    def __init__(self, lms: ModuleType, ballast: Ballast | None) -> None:
        self._lms, self._ballast = lms, ballast
        self.stats: Record = dict(lms.memory_stats())
        self.planned_steps = 0

    def __call__(self) -> None:
        before, self.stats = self.stats, dict(self._lms.memory_stats())
        followed = self.stats["plan.steps"] > before["plan.steps"]
        if followed and self.stats["plan.divergences"] == before["plan.divergences"]:
            self.planned_steps += 1
        if self._ballast is not None:
            self._ballast.sample()


def _until_planned(lms: ModuleType, setting: Setting, step: TrainStep) -> Timed:
    """Steps until some were carried out under a plan that was made with the times of planned steps;
    of a loop whose steps differ, its warm-up."""
    loop = step.loop
    wanted = setting.warmup or (loop.warmup if loop else PLANNED_STEPS)
    warm, watch, first_plan = Timed(), _Watch(lms, setting.ballast), 0
    while True:
        warm.extend(run_steps(step, 1, setting.device, watch))
        stats = watch.stats
        if stats["plan.refined"] == 0:
            first_plan = watch.planned_steps
        if (len(warm.ms) if loop else watch.planned_steps - first_plan) >= wanted:
            return warm
        if not loop and (len(warm.ms) >= MOST_STEPS or sum(warm.ms) > MOST_SECONDS * 1e3):
            raise NoPlan(
                f"{watch.planned_steps} steps out of {len(warm.ms)} ({sum(warm.ms) / 1e3:.0f} s) "
                f"were carried out under a plan, not {wanted}: {stats['plan.shapes']} kinds of "
                f"step known, {stats['plan.planned']} planned, {stats['plan.divergences']} times "
                "another step than planned",
                {
                    "planned": stats["plan.planned"] > 0,
                    "warmup_ms": warm.ms,
                    "losses": warm.losses,
                    "stats": stats,
                },
            )
        if stats["plan.shapes"] > 0:
            lms.wait_for_plan(str(setting.device))


def _promised(stats: Record) -> Record:
    """What the plan last followed has promised; nulls if there is none."""
    if not stats["plan.planned"]:
        return {}
    return {
        "predicted_ms": stats["plan.predicted_us"] / 1e3,
        "plan_peak": stats["plan.peak"],
        "plan_arena": stats["plan.arena"],
        "plan_arena_bound": stats["plan.arena_bound"],
    }


def _swap(lms: ModuleType, setting: Setting, step: TrainStep) -> Record:
    device = setting.device
    try:
        warm = _until_planned(lms, setting, step)
        reserved = memory.read_peaks(device)["reserved_peak"]
        lms.reset_peak_memory_stats(str(device))
        memory.reset_peaks(device)
        count = setting.steps or (step.loop.steps if step.loop else TIMED_STEPS)
        watch = _Watch(lms, setting.ballast)
        before = watch.stats
        timed = run_steps(step, count, device, watch)
        stats = watch.stats
    finally:
        # Also of a step that failed: what was learnt may tell why.
        if setting.trace is not None:
            setting.trace.parent.mkdir(parents=True, exist_ok=True)
            try:
                lms.save_trace(str(setting.trace), str(device))
            except RuntimeError as error:
                print(f"no trace: {error}", flush=True)

    def grown(key: str) -> int:
        return stats.get(key, 0) - before.get(key, 0)

    return (
        _measured(step, timed, warm)
        | _traffic(before, stats, len(timed.ms))
        | _engine_peaks(stats, memory.read_peaks(device))
        | _promised(stats)
        | {
            "warmup_ms": warm.ms,
            "planned": stats["plan.planned"] > 0,
            "plan_steps": watch.planned_steps,
            "divergences": grown("plan.divergences"),
            "misplaced": grown("arena.misplaced"),
            "reserved_peak_warmup": reserved,
            "stats": stats,
        }
    )


def lms_swap(setting: Setting) -> Record:
    """LMS under a limit, its copies planned: timed once plans are followed."""
    return _under_limit(setting, _swap, plan="on", plan_seconds=setting.plan_seconds)


def _recording(lms: ModuleType, setting: Setting, step: TrainStep) -> Record:
    def enable(plan: str) -> None:
        _enable(lms, setting, plan=plan, plan_seconds=min(setting.plan_seconds, 1.0))

    plain_ms = setting.reference and setting.reference["in_memory_ms"]
    fields = recording.measure(
        lms, step, setting.device, enable, rounds=setting.steps, plain_ms=plain_ms
    )
    return fields | _engine_peaks(fields["stats"], memory.read_peaks(setting.device))


def lms_recording(setting: Setting) -> Record:
    """LMS with room for everything: steps that it records, and those before and after."""
    return _under_limit(setting, _recording, plan="off")


METHODS: dict[str, Callable[[Setting], Record]] = {
    "plain": plain,
    "lms-fits": lms_fits,
    "lms-reactive": lms_reactive,
    "lms-swap": lms_swap,
    "lms-recording": lms_recording,
    "save_on_cpu": offload,
    "checkpoint": checkpoint,
}

# These change what the process may reserve, or need a device that nobody else has used.
OWN_PROCESS = frozenset({"lms-reactive", "lms-swap", "lms-recording"})


def run(method: str, setting: Setting) -> Record:
    """Run `method` on a released device; the fields it knows, and those that follow from the
    comparison with the plain run."""
    memory.release(setting.device)
    memory.reset_peaks(setting.device)
    fields = METHODS[method](setting)
    reference = setting.reference
    if method == "plain" or reference is None:
        return fields
    fields.setdefault("in_memory_ms", reference["in_memory_ms"])
    if fields.get("ratio") is None and reference["allocated_peak"]:
        own = setting.limit_bytes or fields["allocated_peak"]
        if own:
            fields["ratio"] = reference["allocated_peak"] / own
    compared: Record = {
        "losses": fields["losses"],
        "plain_deterministic": None,
        "losses_compared": None,
        "bit_identical": None,
    }
    compare_losses(compared, reference)
    return fields | compared
