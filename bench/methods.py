"""Ways to run a step, and what each measures: in memory, under LMS, and what users do today.

A method takes a `Setting` and returns the fields of a record that it knows. Each builds its own
fresh step, so that all of them start from the same weights and see the same data.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from bench import memory
from bench.records import ROOT, Record, compare_losses
from bench.steps import StepOptions, TrainStep, build
from bench.timing import Timed, run_steps, step_count

PAIRS = 6
PAIR_STEPS = 6


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
    warmup: int | None = None
    steps: int | None = None
    # The plain run's record, if there is one.
    reference: Record | None = None

    def build(self) -> TrainStep:
        """A fresh step."""
        return build(self.step, self.options, self.device)


def _warm_up(setting: Setting, step: TrainStep, count: int) -> tuple[Timed, int]:
    """Warm-up steps, and the number of timed ones to follow."""
    warm = run_steps(step, setting.warmup or count, setting.device)
    return warm, setting.steps or step_count(warm.ms[-1])


def _measured(timed: Timed, warm: Timed) -> Record:
    return {
        "step_ms": timed.median_ms,
        "step_ms_all": timed.ms,
        "losses": warm.losses + timed.losses,
    }


def _peaks(step: TrainStep, device: torch.device) -> Record:
    """The peaks; where the device keeps no statistics, of one step more whose bytes are counted."""
    peaks = memory.read_peaks(device)
    if peaks["allocated_peak"] is None:
        with memory.LiveBytes() as live:
            step()
        peaks["allocated_peak"] = live.peak
    return peaks


def plain(setting: Setting) -> Record:
    """In memory; and once more, to see whether the losses repeat."""
    device = setting.device
    step = setting.build()
    warm, count = _warm_up(setting, step, 4)
    timed = run_steps(step, count, device)
    fields = _measured(timed, warm) | _peaks(step, device)
    del step
    memory.release(device)
    again = run_steps(setting.build(), len(fields["losses"]), device)
    repeats = again.losses == fields["losses"]
    fields |= {
        "ratio": 1.0,
        "in_memory_ms": timed.median_ms,
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
        _measured(timed, warm) | _peaks(step, setting.device) | {"bytes_out": 0, "bytes_in": 0}
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
        _measured(timed, warm)
        | memory.read_peaks(setting.device)
        | moved
        | {"bytes_recomputed": 0}
    )


def _lms() -> ModuleType:
    """The package under test: as installed, else from this checkout."""
    try:
        return importlib.import_module("torch_lms")
    except ModuleNotFoundError as error:
        if error.name != "torch_lms":
            raise
        sys.path.append(str(ROOT / "python"))
        return importlib.import_module("torch_lms")


def _enable(lms: ModuleType, setting: Setting) -> None:
    extra = {} if setting.min_block is None else {"min_block": setting.min_block}
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


def lms_reactive(setting: Setting) -> Record:
    """LMS under a limit, with the caching allocator held to it (times `headroom`) as well."""
    if setting.limit_bytes is None:
        raise ValueError("this method needs a limit, or a ratio and a plain run to apply it to")
    lms, device = _lms(), setting.device
    fraction_bytes = None
    if device.type == "cuda" and setting.headroom is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        fraction_bytes = int(setting.limit_bytes * setting.headroom)
        torch.cuda.set_per_process_memory_fraction(min(1.0, fraction_bytes / total), device)
    _enable(lms, setting)
    step: TrainStep | None = None
    try:
        step = setting.build()
        warm, count = _warm_up(setting, step, 4)
        before = dict(lms.memory_stats())
        timed = run_steps(step, count, device)
        stats = dict(lms.memory_stats())
        peaks = _engine_peaks(stats, memory.read_peaks(device))
    finally:
        # Disabling brings everything back, for which there must be room.
        step = None
        memory.release(device)
        if fraction_bytes is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        _disable(lms)
    return (
        _measured(timed, warm)
        | _traffic(before, stats, len(timed.ms))
        | peaks
        | {"fraction_bytes": fraction_bytes, "stats": stats}
    )


METHODS: dict[str, Callable[[Setting], Record]] = {
    "plain": plain,
    "lms-fits": lms_fits,
    "lms-reactive": lms_reactive,
    "save_on_cpu": offload,
    "checkpoint": checkpoint,
}

# These change what the process may reserve, or need a device that nobody else has used.
OWN_PROCESS = frozenset({"lms-reactive"})


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
