"""Runs programs, plainly and under LMS, and says what became of them."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import beside
from .digest import UNCOUNTED, Digests, Reader, differences
from .program import Action, Program, with_units
from .world import namespace

_NAME = re.compile(r"[a-z]\d+")
_FLOOR = re.compile(r"smallest limit that could work here is [^(]*\((\d+) bytes\)")
ENOUGH = 1 << 30  # bytes: no program is given more
_RESTARTS = 8
_GROWTHS = 6
_PLAIN_RUNS = 12


class Wrong(BaseException):
    """The run under LMS differs. Not an Exception: no line may swallow it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class NoRoom(BaseException):
    """LMS ran out of memory in a line that cannot be run again alone.

    ``floor``: the smallest limit that its error names, without what lies beside it.
    """

    def __init__(self, text: str, floor: int) -> None:
        super().__init__(text)
        self.floor = floor


@dataclass
class Verdict:
    """What a program came to: ``same``, ``refused`` (the same with a larger limit), or a failure,
    which is any other kind."""

    kind: str
    text: str = ""
    stats: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.kind not in ("same", "refused")


Trail = list["str | Digests"]


@functools.lru_cache(maxsize=4096)
def _compiled(code: str) -> Any:
    return compile(code, code, "exec")


def reaches_beyond(tensor: Tensor) -> bool:
    """Whether its elements end beyond its storage."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return False
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return end > tensor.untyped_storage().nbytes()


class Run:
    """A program's names, and what it left behind: exceptions by type, and digests.

    This one is the plain run; the functions that change LMS's settings do nothing.
    """

    def __init__(self, program: Program, reader: Reader) -> None:
        self.program = program
        self.reader = reader
        reader.counts_versions = True
        self.trail: Trail = []
        self.names = namespace(program.device)
        for function in (
            self.check,
            self.limits,
            self.restart,
            self.reclaim,
            self.other_thread,
            self.drawn,
        ):
            self.names[function.__name__] = function
        torch.manual_seed(program.seed)
        if program.device == "cpu":
            torch.set_num_threads(program.threads)

    def all(self) -> Trail:
        """Runs everything; the trail."""
        for action in self.program.actions():
            self.act(action)
        self.finish()
        return self.trail

    def finish(self) -> None:
        self.act(Action("check(); drawn()"))

    def act(self, action: Action) -> None:
        if action.branches:
            self.threads(action.branches)
        else:
            self.note(self.line(action.code, action.pure))

    def threads(self, branches: list[list[str]]) -> None:
        """Runs the branches at once, waits, and notes what each came to."""
        seen: list[list[str]] = [[] for _ in branches]
        raised: list[BaseException] = []

        def work(index: int) -> None:
            try:
                for code in branches[index]:
                    seen[index].append(self.line(code, False))
            except BaseException as error:
                error.__traceback__ = None
                raised.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(branches))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        self.note(repr(seen))

    def line(self, code: str, pure: bool) -> str:
        """Runs a line; the type of what it raised, or nothing."""
        self.reader.counts_versions &= not UNCOUNTED.search(code)
        try:
            exec(_compiled(code), self.names)
        except Exception as error:
            self.let_go_of_the_broken(code)
            return type(error).__name__
        return ""

    def let_go_of_the_broken(self, code: str) -> None:
        """After a ``resize_`` that failed, since its storage cannot grow, PyTorch leaves the tensor
        with the sizes that it was to have: whoever uses it reads and writes beyond its memory.

        Of what the line has named, no more: another thread may be giving its own new sizes."""
        for name in set(_NAME.findall(code)):
            value = self.names.get(name)
            if isinstance(value, Tensor) and reaches_beyond(value):
                self.names.pop(name, None)

    def note(self, event: str | Digests) -> None:
        self.trail.append(event)

    def held(self) -> dict[str, Any]:
        """The program's own names."""
        return {name: value for name, value in self.names.items() if _NAME.fullmatch(name)}

    def check(self) -> None:
        self.note(self.reader.read(self.held()))

    def drawn(self) -> None:
        """Notes how far the default generator has got."""
        self.note(str(hash(tuple(torch.random.get_rng_state().tolist()))))

    def clear(self) -> None:
        self.names.clear()
        gc.collect()
        # A backward pass that failed leaves gradients in the queue of its thread to the next one.
        with contextlib.suppress(torch.OutOfMemoryError):
            one = torch.ones(1, device=self.program.device, requires_grad=True)
            one.mul(1).backward()

    def limits(self, limit: int) -> None: ...

    def restart(self) -> None: ...

    def reclaim(self) -> None: ...

    def other_thread(self, limit: int) -> None: ...


class ManagedRun(Run):
    """The same under LMS, held against the plain run's trail while it goes."""

    def __init__(self, program: Program, reader: Reader, expected: Trail, factor: float) -> None:
        import torch_lms

        super().__init__(program, reader)
        self.lms = torch_lms
        self.expected = expected
        self.at = 0
        self.ran = ""
        self.grown = 0
        self.settings = program.settings.arguments() | {
            "device": program.device,
            "plan_cache": "off",
        }
        self.factor = factor
        self.least = 0
        self.base = beside.base(program)
        self.settings["host_limit"] = min(int(program.settings.host_limit * factor), ENOUGH)
        try:
            self.limits(program.settings.limit)
        except torch.OutOfMemoryError:
            # A program before has left what waits, in a leak of PyTorch's own: it is run first.
            with_room = self.settings | {"limit": ENOUGH}
            self.lms.enable(**with_units(with_room))
            self.limits(program.settings.limit)

    def scaled(self, limit: int) -> int:
        return max(min(int(limit * self.factor), ENOUGH) + self.base, self.least)

    def limits(self, limit: int) -> None:
        before = self.settings.get("limit")
        self.settings["limit"] = self.scaled(limit)
        try:
            self.lms.enable(**with_units(self.settings))
        except torch.OutOfMemoryError:
            # What is kept or pinned, or has no room below, may be more: the old limit stands.
            self.settings["limit"] = before
            self.lms.enable(**with_units(self.settings))

    def other_thread(self, limit: int) -> None:
        thread = threading.Thread(target=self.limits, args=(limit,))
        thread.start()
        thread.join()

    def restart(self) -> None:
        self.lms.disable()
        self.lms.enable(**with_units(self.settings))

    def reclaim(self) -> None:
        try:
            self.lms.reclaim_inactive(self.program.device)
        except RuntimeError as error:
            if "is full" not in str(error):  # the tier below: an error by contract
                raise

    def line(self, code: str, pure: bool) -> str:
        self.ran = code
        self.reader.counts_versions &= not UNCOUNTED.search(code)
        while True:
            try:
                exec(_compiled(code), self.names)
                return ""
            except torch.OutOfMemoryError as error:
                text = str(error)
            except Exception as error:
                text = str(error)
                if "LMS: out of memory" not in text:  # wrapped: load_state_dict does so
                    self.let_go_of_the_broken(code)
                    self.raised = f"{type(error).__name__}: {text[:300]}"
                    return type(error).__name__
            floor = self.floor_of(text)
            if not pure or self.grown == _GROWTHS:
                raise NoRoom(text, floor - self.base)
            self.grown += 1
            self.least = max(floor, int(self.settings["limit"] * 1.5))
            self.settings["host_limit"] *= 2
            self.limits(self.least)

    def floor_of(self, text: str) -> int:
        """The smallest limit that an error names; it has to be more than there is."""
        limit = self.settings["limit"]
        if limit >= ENOUGH + self.base:
            raise Wrong("memory", f"{self.ran}: {text}")
        found = _FLOOR.search(text)
        if found is None:
            return 0
        floor = int(found.group(1))
        if floor <= limit and "file" not in text and "host" not in text:
            raise Wrong("figure", f"{self.ran}: {text}")
        return floor

    def note(self, event: str | Digests) -> None:
        expected = self.expected[self.at] if self.at < len(self.expected) else ""
        self.at += 1
        if event == expected:
            return
        where = f"after event {self.at} ({self.ran})"
        if isinstance(event, dict) and isinstance(expected, dict):
            raise Wrong("bits", f"{where}: " + "; ".join(differences(expected, event)[:4]))
        more = getattr(self, "raised", "")
        raise Wrong("raises", f"{where}: plain {expected!r}, under LMS {event!r} {more}")


def run_plain(program: Program, reader: Reader) -> Trail:
    run = Run(program, reader)
    trail = run.all()
    run.clear()
    return trail


def varies(program: Program, reader: Reader, expected: Trail) -> bool:
    """Whether plain runs differ among themselves, with memory elsewhere and other noise in it each
    time."""
    held = []
    for turn in range(_PLAIN_RUNS):
        held.append(torch.empty(100 + 7919 * turn % 4000))
        beside.soil(program.device, random.Random(turn))
        if run_plain(program, reader) != expected:
            return True
    return False


def _peak() -> int:
    """Most bytes that this process has had in memory."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", text).group(1)) << 10


def _restart_peak() -> int:
    """The peak begins anew; what it begins with."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def takes_plainly(program: Program, reader: Reader, trail: Trail) -> int:
    """Most bytes that a plain run, which has left such a trail, has had at once."""
    if program.device == "cpu":
        before = _restart_peak()
        run_plain(program, reader)
        return _peak() - before
    if any("OutOfMemoryError" in event for event in trail if isinstance(event, str)):
        return 1 << 62
    torch.cuda.reset_peak_memory_stats()
    run_plain(program, reader)
    return int(torch.cuda.max_memory_allocated())


_EMPTY = ("blocks", "pinned.bytes")
#: What a leak's text begins with where a run has ended in an error of memory.
REFUSED_BEFORE = "after errors of memory: "


def _left(device: str) -> dict[str, int]:
    """What LMS holds."""
    import torch_lms

    stats = torch_lms.memory_stats(device)
    return {key: stats.get(f"{key}.current", 0) for key in _EMPTY}


def _once(program: Program, reader: Reader, expected: Trail, factor: float) -> bool:
    """One run under LMS; Wrong or NoRoom. False: it was given more than its limits."""
    run = ManagedRun(program, reader, expected, factor)
    try:
        run.all()
        return run.grown == 0
    except (Wrong, NoRoom) as error:
        error.__traceback__ = None  # whose frames hold tensors
        raise error from None
    finally:
        run.clear()
        del run


_COUNTS = ("evictions", "evictions.clean", "drops", "remakes", "slices.operators")
_COUNTS += ("slices.in_place", "slices.by_rows", "deferred.in_rows")
_COUNTS += ("plan.steps", "plan.divergences")


def _counts(device: str) -> dict[str, int]:
    import torch_lms

    stats = torch_lms.memory_stats(device)
    return {key: int(stats.get(key, 0)) for key in _COUNTS}


def run_managed(
    program: Program,
    reader: Reader,
    expected: Trail,
    known: Callable[[str], bool] = lambda name: False,
) -> Verdict:
    """The verdict on a program whose plain trail is known. LMS may be on before, and stays on.

    ``known``: whether failures of a kind (``figure``, ``needless``) are those of a known defect.
    """
    before = _counts(program.device)
    held = _left(program.device)
    refused = ""
    factor = 1.0
    try:
        for turn in range(_RESTARTS):
            try:
                _once(program, reader, expected, factor)
                break
            except NoRoom as error:
                if turn + 1 == _RESTARTS:
                    raise Wrong("memory", f"at {factor} times the limit: {error}") from None
                refused = refused or str(error)
                factor = max(factor * 2, 1.01 * error.floor / program.settings.limit)
                factor = factor if turn < _RESTARTS - 2 else float(ENOUGH)
    except Wrong as error:
        if not (error.kind in ("figure", "needless") and known(error.kind)):
            return Verdict(error.kind, error.text)
        refused = error.text
    if _left(program.device) != held:
        gc.collect()
    left = _left(program.device)
    if any(left[key] > held[key] for key in _EMPTY):
        errors = REFUSED_BEFORE if refused else ""
        return Verdict("leak", f"{errors}{left}, before the program {held}")
    after = _counts(program.device)
    # The pilot begins to count anew whenever it starts.
    stats = {k: after[k] - (0 if k.startswith("plan.") else before.get(k, 0)) for k in _COUNTS}
    if refused and not known("needless") and needless(program, reader, expected):
        return Verdict("needless", f"finishes with plan='off', recompute=False; else: {refused}")
    return Verdict("refused" if refused else "same", refused, stats)


def needless(program: Program, reader: Reader, expected: Trail) -> bool:
    """Whether a refused program fits under the very same limits where nothing is planned."""
    settings = program.settings
    if settings.stress or (settings.plan == "off" and not settings.recompute):
        return False
    simple = program.copy()
    simple.settings.plan, simple.settings.recompute = "off", False
    try:
        return _once(simple, reader, expected, 1.0)
    except (Wrong, NoRoom):
        return False
