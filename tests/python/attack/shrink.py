"""Makes failing programs small: leaves out lines, steps and settings while the failure stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import workers
from .program import Action, Program

_TRIES = 3  # plans depend on measured times: a failure may need more than one run
_AT_ONCE = 8
_SIMPLEST = ("off", False)  # settings that are left as they are


@dataclass
class Shrunk:
    """The smallest program found that still fails, and what is to be said about it."""

    program: Program
    note: str


class _Tester:
    """Runs candidates, several at once, and says which is the first that fails as it should."""

    def __init__(self, kind: str, jobs: int, seconds: float) -> None:
        self.kind = kind
        self.jobs = jobs
        self.tries = 1
        self.deadline = time.monotonic() + seconds

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def first(self, candidates: list[Program]) -> int | None:
        """The index of the first candidate that fails in that way."""
        tasks: list[workers.Task] = [c.to_json() for c in candidates for _ in range(self.tries)]
        place = {id(task): index // self.tries for index, task in enumerate(tasks)}
        device = candidates[0].device
        found = [
            place[id(result.task)]
            for result in workers.run_all(tasks, device, self.jobs, -(-len(tasks) // self.jobs))
            if result.kind == self.kind
        ]
        return min(found, default=None)


def shrink(program: Program, kind: str, jobs: int, seconds: float) -> Shrunk:
    """A smaller program that fails in the same way. Failures of one ``kind`` count as the same."""
    tester = _Tester(kind, jobs, seconds)
    if tester.first([program]) is None:
        tester.tries = _TRIES
        if tester.first([program]) is None:
            return Shrunk(program, "does not fail alone: see what ran before it")
    size, before = program.size(), 0
    while program.size() != before and not tester.late:
        before = program.size()
        program = _without_lines(program, tester)
        for way in (_fewer_steps, _simpler_settings, _fewer_in_threads):
            program = _reduce(program, way, tester)
    return Shrunk(program, f"fails alone, {size} lines shrunk to {program.size()}")


def _reduce(
    program: Program, way: Callable[[Program], Iterator[Program]], tester: _Tester
) -> Program:
    """Applies one way of making smaller programs until none of those fails."""
    while not tester.late:
        candidates = list(way(program))
        found = tester.first(candidates) if candidates else None
        if found is None:
            break
        program = candidates[found]
    return program


def _without_lines(program: Program, tester: _Tester) -> Program:
    """Leaves out half of the lines, a quarter, ... and at last single ones; the last ones first."""
    length = max(_count(program) // 2, 1)
    while length >= 1:
        end = _count(program)
        while end > 0 and not tester.late:
            ends = [at for at in range(end, 0, -length)][:_AT_ONCE]
            candidates = [_without(program, max(at - length, 0), at) for at in ends]
            found = tester.first(candidates)
            if found is None:
                end = ends[-1] - length
            else:
                program = candidates[found]
                end = ends[found] - length
        length //= 2
    return program


def _count(program: Program) -> int:
    return sum(map(len, _lists(program)))


def _without(program: Program, first: int, end: int) -> Program:
    """Without the lines from ``first`` to before ``end``, all lists one after the other."""
    less = program.copy()
    for lines in _lists(less):
        count = len(lines)
        del lines[max(first, 0) : max(end, 0)]
        first, end = first - count, end - count
    return less


def _fewer_steps(program: Program) -> Iterator[Program]:
    for steps in sorted({1, program.steps // 2, program.steps - 1}):
        if 0 < steps < program.steps:
            less = program.copy()
            less.steps = steps
            less.extras = {at: lines for at, lines in less.extras.items() if at < steps}
            yield less


def _simpler_settings(program: Program) -> Iterator[Program]:
    for name, value in (
        ("plan", "off"),
        ("plan", "now"),
        ("recompute", False),
        ("verify", False),
        ("stress", False),
        *([("stress", True)] if program.settings.stress == "drop" else []),
        ("host_limit", 1 << 28),
        ("plan_seconds", 0.0),
        ("min_block", 4096),
    ):
        if getattr(program.settings, name) not in (value, *_SIMPLEST):
            simpler = program.copy()
            setattr(simpler.settings, name, value)
            yield simpler


def _lists(program: Program) -> list[list[Action]]:
    return [program.prelude, program.body, *program.extras.values()]


def _fewer_in_threads(program: Program) -> Iterator[Program]:
    for which, lines in enumerate(_lists(program)):
        for at, action in enumerate(lines):
            for branch, codes in enumerate(action.branches):
                for line in range(len(codes)):
                    less = program.copy()
                    del _lists(less)[which][at].branches[branch][line]
                    yield less
