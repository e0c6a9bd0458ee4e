"""What a method of measuring is told, and the fields of a record that several methods fill in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench.ballast import Ballast
from bench.records import Record
from bench.steps import StepOptions, TrainStep, build
from bench.timing import Timed


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
    # For planned runs: the steps under a plan before the timed ones.
    warmup: int | None = None
    steps: int | None = None
    # For plain: the steps of its second run, if they are to be more than those of its first. What
    # others are compared with is as long as the longer one.
    compared: int | None = None
    # Most time that a search for a plan may take.
    plan_seconds: float = 5.0
    # Further settings of enable(), as text.
    enable: dict[str, str] = field(default_factory=dict)
    # Where planned runs leave the trace of the step.
    trace: Path | None = None
    # What makes the device keep to the limit.
    ballast: Ballast | None = None
    # The plain run's record, if there is one.
    reference: Record | None = None

    def build(self) -> TrainStep:
        """A fresh step."""
        return build(self.step, self.options, self.device)


def measured(step: TrainStep, timed: Timed, warm: Timed) -> Record:
    """What the timed steps took, and the losses of all."""
    return {
        "step_ms": timed.mean_ms if step.loop else timed.median_ms,
        "step_ms_all": timed.ms,
        "losses": warm.losses + timed.losses,
    }


# Fields that are the growth of one of LMS's statistics over a step, and which.
_TRAFFIC = {
    "bytes_out": "bytes_out",
    "bytes_in": "bytes_in",
    "bytes_recomputed": "bytes_remade",
    "drops": "drops",
    "remakes": "remakes",
}


def traffic(before: Record, after: Record, steps: int) -> Record:
    """What LMS moved and computed again in each of `steps` steps, by its statistics around them."""
    return {
        field: round((after.get(key, 0) - before.get(key, 0)) / steps)
        for field, key in _TRAFFIC.items()
    }


def engine_peaks(stats: Record, peaks: Record) -> Record:
    """`peaks` with what the engine itself holds; it knows what PyTorch's statistics do not."""
    out = dict(peaks)
    if out["allocated_peak"] is None:
        out["allocated_peak"] = stats["device.bytes.peak"]
    # Pinned memory that the engine owns does not come from PyTorch's host allocator.
    out["host_peak"] = stats.get("host.bytes.peak", 0) + (peaks["host_peak"] or 0)
    out["file_peak"] = stats.get("file.bytes.peak", 0)
    return out
