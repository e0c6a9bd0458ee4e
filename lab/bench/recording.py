"""What it costs to record a step: neighbouring steps without plans, recorded, and afterwards.

Nothing has to move meanwhile: the limit leaves room for everything, but not so much that the step
would not be worth a plan. What is left is what LMS does for planning's sake.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from bench.records import Record
from bench.timing import Timed, run_steps

ROUNDS = 6
LEAST_ROUNDS = 2
SECONDS = 20.0
OFF_STEPS = 5
# Of a round's block with plans: steps followed after the plan has been made a second time (the one
# after these is timed once more, of which the statistics say nothing), the most to wait for them,
# and how many show that the step is taken for none worth a plan.
FOLLOWED_STEPS = 3
MOST_STEPS = 20
RECORDED_STEPS = 8

# In the order in which they come.
PHASES = {
    "off": "without plans",
    "recorded": "operators, uses, allocations and releases are logged",
    "found": "the log has repeated itself: the step becomes known during this one",
    "tracked": "compared with the step that is known",
    "timed": "the same (or a plan followed), with an event around every operator",
    "followed": "under a plan from end to end",
}


def phases_of(stats: Sequence[Record]) -> list[str | None]:
    """What the planner did during each step, from the statistics before the first and after every
    one. None: something else, such as bringing back what had to leave when a plan was made.

    A step that was timed is told by what follows: a plan is made of the times before the next step
    begins, and taken over when that one ends.
    """
    pairs = list(zip(stats, stats[1:], strict=False))

    def grown(key: str, index: int) -> bool:
        return 0 <= index < len(pairs) and pairs[index][1][key] > pairs[index][0][key]

    phases: list[str | None] = []
    for index, (before, _) in enumerate(pairs):
        phase: str | None = None
        if before["plan.shapes"] == 0:
            phase = "found" if grown("plan.shapes", index) else "recorded"
        elif grown("plan.divergences", index) or grown("plan.planned", index):
            pass
        elif grown("plan.planned", index + 1) or grown("plan.refined", index + 1):
            phase = "timed"
        elif grown("plan.steps", index):
            phase = "followed"
        elif before["plan.planned"] == 0:
            phase = "tracked"
        phases.append(phase)
    return phases


@dataclass
class _Samples:
    """The steps of one phase, by round."""

    rounds: dict[int, list[float]] = field(default_factory=dict)
    bytes_out: int = 0
    bytes_in: int = 0

    def add(self, number: int, ms: float, before: Record, after: Record) -> None:
        self.rounds.setdefault(number, []).append(ms)
        self.bytes_out += after["bytes_out"] - before["bytes_out"]
        self.bytes_in += after["bytes_in"] - before["bytes_in"]

    @property
    def ms(self) -> list[float]:
        return [ms for times in self.rounds.values() for ms in times]

    def fields(self, off: _Samples, plain_ms: float | None) -> Record:
        """What a record says of the phase. Ratios are of medians within a round, so that a slow
        drift of the machine's clocks does not touch them."""
        times = self.ms
        median = statistics.median(times)
        ratios = [
            statistics.median(ms) / statistics.median(off.rounds[number])
            for number, ms in self.rounds.items()
        ]
        return {
            "step_ms": median,
            "step_ms_all": times,
            "over_off": statistics.median(ratios) - 1,
            "overhead": median / plain_ms - 1 if plain_ms else None,
            "bytes_out": round(self.bytes_out / len(times)),
            "bytes_in": round(self.bytes_in / len(times)),
        }


def press(device: torch.device, limit: int) -> None:
    """Has a block of its own leave the device, after which the planner records. It is so small that
    no other has to."""
    scratch = torch.zeros(min(2**21, limit // 64) // 4, device=device)
    scratch.add_(1)
    if not torch.ops.lms.evict(scratch):
        raise RuntimeError("no block could be made to leave the device")


class Rounds:
    """Blocks of steps without plans and with plans made anew, in turns."""

    def __init__(
        self,
        lms: ModuleType,
        step: Callable[[], torch.Tensor],
        device: torch.device,
        enable: Callable[[str], Any],
    ) -> None:
        """`enable` takes a setting of `plan`, and has planning start anew with it."""
        self._lms, self._step, self._device, self._enable = lms, step, device, enable
        self._samples: dict[str, _Samples] = {}
        self.every = Timed()

    def _run(self, count: int, after_each: Callable[[], None] | None = None) -> Timed:
        timed = run_steps(self._step, count, self._device, after_each)
        self.every.extend(timed)
        return timed

    def _stats(self) -> Record:
        return dict(self._lms.memory_stats())

    def _begin(self, plan: str) -> list[Record]:
        """Before a block of timed steps; the statistics then."""
        self._enable(plan)
        self._run(1)
        press(self._device, self._stats()["limit"])
        # Steps of the planner's are to be those that are timed here.
        self._lms.step(str(self._device))
        return [self._stats()]

    def off_block(self, number: int) -> None:
        """Steps without plans, otherwise just like the others."""
        stats = self._begin("off")
        times = self._run(OFF_STEPS, lambda: stats.append(self._stats())).ms
        self._add(number, times, stats, ["off"] * OFF_STEPS)

    def on_block(self, number: int) -> None:
        """Steps from recording to following."""
        stats = self._begin("on")

        def look() -> None:
            self._lms.step(str(self._device))
            self._lms.wait_for_plan(str(self._device))
            stats.append(self._stats())

        times: list[float] = []
        while len(times) < MOST_STEPS:
            times += self._run(1, look).ms
            if stats[-1]["plan.shapes"] == 0 and len(times) >= RECORDED_STEPS:
                break
            if sum(1 for each in stats if each["plan.refined"] > 0) > FOLLOWED_STEPS:
                break
        self._add(number, times, stats, phases_of(stats))

    def _add(
        self,
        number: int,
        times: Sequence[float],
        stats: Sequence[Record],
        phases: Sequence[str | None],
    ) -> None:
        for index, phase in enumerate(phases):
            if phase is not None:
                samples = self._samples.setdefault(phase, _Samples())
                samples.add(number, times[index], stats[index], stats[index + 1])

    def run(self, rounds: int, seconds: float) -> None:
        """Up to `rounds`; after the first two, none begins later than `seconds`."""
        began = time.monotonic()
        for number in range(rounds):
            if number >= LEAST_ROUNDS and time.monotonic() - began > seconds:
                return
            # Which comes first changes from round to round.
            blocks = [self.off_block, self.on_block]
            for block in blocks if number % 2 == 0 else reversed(blocks):
                block(number)

    def fields(self, plain_ms: float | None) -> dict[str, Record]:
        """By phase, in order: times, and overheads over the phase `off` and the plain run."""
        off = self._samples["off"]
        return {
            phase: self._samples[phase].fields(off, plain_ms)
            for phase in PHASES
            if phase in self._samples
        }


def measure(
    lms: ModuleType,
    step: Callable[[], torch.Tensor],
    device: torch.device,
    enable: Callable[[str], Any],
    *,
    rounds: int | None,
    plain_ms: float | None,
) -> Record:
    """What a record says, its times being those of recorded steps. `enable` as of Rounds."""
    all_rounds = Rounds(lms, step, device, enable)
    all_rounds.run(rounds or ROUNDS, SECONDS)
    phases = all_rounds.fields(plain_ms)
    of_recorded = ("step_ms", "step_ms_all", "bytes_out", "bytes_in")
    return {key: phases["recorded"][key] for key in of_recorded} | {
        "losses": all_rounds.every.losses,
        "phases": phases,
        "stats": dict(lms.memory_stats()),
    }
