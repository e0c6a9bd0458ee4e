"""Makes failing programs small: leaves out lines, steps and settings while the failure stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import workers
from .program import Action, Program

_TRIES = 3  # plans depend on measured times: a failure may need more than one run
_SECONDS = 120.0
_AT_ONCE = 8


@dataclass
class Shrunk:
    """The smallest program found that still fails, and what is to be said about it."""

    program: Program
    note: str


def shrink(program: Program, kind: str, jobs: int) -> Shrunk:
    """A smaller program that fails in the same way. Failures of one ``kind`` count as the same."""
    deadline = time.monotonic() + _SECONDS

    def first_failing(candidates: list[Program]) -> Program | None:
        tasks: list[workers.Task] = [c.to_json() for c in candidates for _ in range(tries)]
        found: dict[int, bool] = {}
        place = {id(task): index // tries for index, task in enumerate(tasks)}
        for result in workers.run_all(tasks, program.device, jobs, batch=1):
            if result.kind == kind:
                found[place[id(result.task)]] = True
        return candidates[min(found)] if found else None

    tries = 1
    if first_failing([program]) is None:
        tries = _TRIES * 2
        if first_failing([program]) is None:
            return Shrunk(program, "does not fail alone: see what ran before it")
    size = program.size()
    smaller = True
    while smaller and time.monotonic() < deadline:
        smaller = False
        for way in (_fewer_steps, _simpler_settings, _fewer_lines, _fewer_in_threads):
            more = _reduce(program, way, first_failing, deadline)
            smaller = smaller or more is not program
            program = more
    return Shrunk(program, f"fails alone, {size} lines shrunk to {program.size()}")


def _reduce(
    program: Program,
    way: Callable[[Program], Iterator[Program]],
    first_failing: Callable[[list[Program]], Program | None],
    deadline: float,
) -> Program:
    """Applies one way of making smaller programs until none of those fails."""
    found: Program | None = program
    while found is not None and time.monotonic() < deadline:
        program, found = found, None
        group: list[Program] = []
        for candidate in way(program):
            group.append(candidate)
            if len(group) == _AT_ONCE:
                found = first_failing(group)
                group = []
            if found is not None or time.monotonic() > deadline:
                break
        if found is None and group:
            found = first_failing(group)
    return program


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
        ("stress", True),
        ("host_limit", 1 << 28),
        ("plan_seconds", 0.0),
        ("min_block", 4096),
    ):
        if getattr(program.settings, name) not in (value, False):
            simpler = program.copy()
            setattr(simpler.settings, name, value)
            yield simpler


def _lists(program: Program) -> list[list[Action]]:
    return [program.prelude, program.body, *program.extras.values()]


def _fewer_lines(program: Program) -> Iterator[Program]:
    """Without half of a list of lines, a quarter, ... and at last without one."""
    longest = max(len(lines) for lines in _lists(program))
    length = longest
    while length >= 1:
        for which, lines in enumerate(_lists(program)):
            for start in range(0, len(lines), length):
                if length > 1 and length > len(lines):
                    continue
                less = program.copy()
                del _lists(less)[which][start : start + length]
                yield less
        length //= 2


def _fewer_in_threads(program: Program) -> Iterator[Program]:
    for which, lines in enumerate(_lists(program)):
        for at, action in enumerate(lines):
            for branch, codes in enumerate(action.branches):
                for line in range(len(codes)):
                    less = program.copy()
                    del _lists(less)[which][at].branches[branch][line]
                    yield less
