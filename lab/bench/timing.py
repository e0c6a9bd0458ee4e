"""Clocks: of training steps, and of the link between host and device."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

LINK_BYTES = 256 * 1024 * 1024


@dataclass
class Timed:
    """What some steps took and computed."""

    ms: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """Median time of a step."""
        return statistics.median(self.ms)

    @property
    def mean_ms(self) -> float:
        """Mean time of a step."""
        return statistics.fmean(self.ms)

    def extend(self, other: Timed) -> None:
        """Append the steps of `other`."""
        self.ms += other.ms
        self.losses += other.losses


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collects now, and not before the end. Within another: nothing."""
    was_on = gc.isenabled()
    if was_on:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def run_steps(
    step: Callable[[], torch.Tensor],
    count: int,
    device: torch.device,
    after_each: Callable[[], None] | None = None,
) -> Timed:
    """Run `count` steps, each from an idle device to an idle device, `after_each` between them.

    On a GPU the time is between events around the step, elsewhere of the wall clock. Updates that
    wait run when the next step begins: a time includes those of the step before. Losses are read in
    the timed part, and kept as hexadecimal floats, so that equal means equal bits. Python's garbage
    collector is off meanwhile.
    """
    timed = Timed()
    cuda = device.type == "cuda"
    with no_garbage_collection():
        for _ in range(count):
            if cuda:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize(device)
                begin.record()
                loss = step().item()
                end.record()
                torch.cuda.synchronize(device)
                timed.ms.append(begin.elapsed_time(end))
            else:
                start = time.perf_counter()
                loss = step().item()
                timed.ms.append((time.perf_counter() - start) * 1e3)
            timed.losses.append(float(loss).hex())
            if after_each is not None:
                after_each()
    return timed


def step_count(ms: float, *, seconds: float = 6.0, least: int = 5, most: int = 20) -> int:
    """How many steps of `ms` to time: `seconds` of them, within `least` and `most`."""
    return max(least, min(most, int(seconds * 1e3 / ms)))


def measure_link(device: torch.device) -> tuple[float, float] | None:
    """Bytes per second out of (device to host) and into the device, pinned, each alone.

    None for a device without a link. Medians of seven copies of 256 MiB.
    """
    if device.type != "cuda":
        return None
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device)

    def rate(target: torch.Tensor, source: torch.Tensor) -> float:
        times = []
        for _ in range(9):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
            torch.cuda.synchronize(device)
            times.append(begin.elapsed_time(end))
        return LINK_BYTES / (statistics.median(times[2:]) * 1e-3)

    return rate(host, on_device), rate(on_device, host)
