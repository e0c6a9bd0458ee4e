"""Ways to run a step, and what each measures: in memory, under LMS, and what users do today.

A method takes a `Setting` and returns the fields of a record that it knows. Each builds its own
fresh step, so that all of them start from the same weights and see the same data.
"""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu

from bench import host, memory, planned, recording
from bench.records import Record, compare
from bench.setting import Setting, engine_peaks, measured, traffic
from bench.steps import TrainStep
from bench.steps import package as _lms
from bench.timing import Timed, run_steps, step_count
from bench.weights import fingerprint

PAIRS = 6
PAIR_STEPS = 6


def _warm_up(setting: Setting, step: TrainStep, count: int) -> tuple[Timed, int]:
    """Warm-up steps, and the number of timed ones to follow."""
    loop, sample = step.loop, setting.ballast and setting.ballast.sample
    count = setting.warmup or (loop.warmup if loop else count)
    warm = run_steps(step, count, setting.device, sample)
    return warm, setting.steps or (loop.steps if loop else step_count(warm.ms[-1]))


def peaks(step: TrainStep, device: torch.device) -> Record:
    """The peaks; where the device keeps no statistics, of one step more whose bytes are counted."""
    peaks = memory.read_peaks(device)
    if peaks["allocated_peak"] is None:
        with memory.LiveBytes() as live:
            for _ in range(step.loop.cycle if step.loop else 1):
                step()
        peaks["allocated_peak"] = live.peak
    return peaks


def plain(setting: Setting) -> Record:
    """In memory; and once more, to see whether losses and weights repeat."""
    device = setting.device
    step = setting.build()
    warm, count = _warm_up(setting, step, 4)
    timed = run_steps(step, count, device)
    fields = measured(step, timed, warm)
    first, weights = fields["losses"], fingerprint(step.model)
    fields |= peaks(step, device)
    in_memory_ms = fields["step_ms"]
    del step
    memory.release(device)
    step = setting.build()
    fingerprints: list[str] = []
    count = max(len(first), setting.compared or 0)
    again = run_steps(step, count, device, lambda: fingerprints.append(fingerprint(step.model)))
    repeats = again.losses[: len(first)] == first and fingerprints[len(first) - 1] == weights
    fields |= {
        "ratio": 1.0,
        "in_memory_ms": in_memory_ms,
        "bytes_out": 0,
        "bytes_in": 0,
        "bytes_recomputed": 0,
        "losses": again.losses if repeats else first,
        "weights": dict(enumerate(fingerprints, 1)),
        "plain_deterministic": repeats,
        "losses_compared": len(first),
        "bit_identical": True if repeats else None,
        "weights_equal": True if repeats else None,
    }
    return fields


def checkpoint(setting: Setting) -> Record:
    """Every block of the model recomputed in the backward pass."""
    step = setting.build()
    step.set_checkpointing(True)
    warm, count = _warm_up(setting, step, 4)
    timed = run_steps(step, count, setting.device)
    return (
        measured(step, timed, warm) | peaks(step, setting.device) | {"bytes_out": 0, "bytes_in": 0}
    )


def offload(setting: Setting) -> Record:
    """PyTorch's `save_on_cpu(pin_memory=True)` around the forward pass, at its own peak."""
    step = setting.build()
    step.around_forward = lambda: save_on_cpu(pin_memory=True)
    warm, count = _warm_up(setting, step, 3)
    # One step more, outside the timed ones, counts the bytes.
    counting = _lms()._bench_try.CountingOffload(pin=True)
    step.around_forward = lambda: counting
    warm.extend(run_steps(step, 1, setting.device))
    step.around_forward = lambda: save_on_cpu(pin_memory=True)
    timed = run_steps(step, count, setting.device)
    return (
        measured(step, timed, warm)
        | memory.read_peaks(setting.device)
        | {"bytes_out": counting.to_host, "bytes_in": counting.to_device, "bytes_recomputed": 0}
    )


def _enable(lms: ModuleType, setting: Setting, **extra: Any) -> None:
    if setting.min_block is not None:
        extra["min_block"] = setting.min_block
    extra |= setting.enable
    # Every run plans for itself.
    lms.enable(limit=setting.limit_bytes, device=str(setting.device), plan_cache="off", **extra)


def _disable(lms: ModuleType) -> None:
    if lms.is_enabled():
        lms.disable()


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
    moved: Record = {}
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
        for key, value in traffic(before, stats, steps).items():
            moved[key] = max(moved.get(key, 0), value)
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
        | moved
        | engine_peaks(stats, memory.read_peaks(device))
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
            if not hasattr(error, "fields"):
                error.fields = {"stats": dict(lms.memory_stats())}
            raise
        finally:
            # Disabling brings everything back, for which there must be room.
            memory.release(device)
            if fraction_bytes is not None:
                _set_fraction(device, None)
            _disable(lms)
    finally:
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
        measured(step, timed, warm)
        | traffic(before, stats, len(timed.ms))
        | engine_peaks(stats, memory.read_peaks(device))
        | {"stats": stats}
    )


def lms_reactive(setting: Setting) -> Record:
    """LMS under a limit, without plans."""
    return _under_limit(setting, _reactive, plan="off")


def _planned(setting: Setting, *, recompute: bool) -> Record:
    return _under_limit(
        setting,
        planned.measure,
        plan="on",
        plan_seconds=setting.plan_seconds,
        recompute=recompute,
    )


def lms_recompute(setting: Setting) -> Record:
    """LMS under a limit, copies and recomputation planned: timed once plans are followed."""
    return _planned(setting, recompute=True)


def lms_swap(setting: Setting) -> Record:
    """The same with copies alone."""
    return _planned(setting, recompute=False)


def _recording(lms: ModuleType, setting: Setting, step: TrainStep) -> Record:
    def enable(plan: str) -> None:
        _enable(lms, setting, plan=plan, plan_seconds=min(setting.plan_seconds, 1.0))

    plain_ms = setting.reference and setting.reference["in_memory_ms"]
    fields = recording.measure(
        lms, step, setting.device, enable, rounds=setting.steps, plain_ms=plain_ms
    )
    return fields | engine_peaks(fields["stats"], memory.read_peaks(setting.device))


def lms_recording(setting: Setting) -> Record:
    """LMS with room for everything: steps that it records, and those before and after."""
    return _under_limit(setting, _recording, plan="off")


def lms_host(setting: Setting) -> Record:
    """What a step costs the host: plain, where all fits, and planned, one after the other."""
    return host.measure(_lms(), setting)


METHODS: dict[str, Callable[[Setting], Record]] = {
    "plain": plain,
    "lms-fits": lms_fits,
    "lms-reactive": lms_reactive,
    "lms": lms_recompute,
    "lms-swap": lms_swap,
    "lms-recording": lms_recording,
    "save_on_cpu": offload,
    "checkpoint": checkpoint,
    "host": lms_host,
}

# These change what the process may reserve, or need a device that nobody else has used.
OWN_PROCESS = frozenset({"lms-reactive", "lms", "lms-swap", "lms-recording"})


def run(method: str, setting: Setting) -> Record:
    """Run `method` on a released device; the fields it knows, and those that follow from the
    comparison with the plain run."""
    memory.release(setting.device)
    memory.reset_peaks(setting.device)
    fields = METHODS[method](setting)
    reference = setting.reference
    if method in ("plain", "host") or reference is None:
        return fields
    fields.setdefault("in_memory_ms", reference["in_memory_ms"])
    if fields.get("ratio") is None and reference["allocated_peak"]:
        own = setting.limit_bytes or fields["allocated_peak"]
        if own:
            fields["ratio"] = reference["allocated_peak"] / own
    compared: Record = {
        "losses": fields["losses"],
        "weights": fields.get("weights"),
        "plain_deterministic": None,
        "losses_compared": None,
        "bit_identical": None,
        "weights_equal": None,
    }
    compare(compared, reference)
    return fields | compared
