"""Runs programs in forked children: a batch of them a child, and another child after a crash.

The parent only imports: children are ready at once, and each has its own LMS. A batch runs plainly
first, all of it, and then under LMS, which is switched on once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import torch

from .known import is_known
from .program import Program, with_units

TIMEOUT = 60.0  # seconds for one program in one of its runs
Task = int | dict[str, Any]  # a seed, or a program as JSON


@dataclass
class Result:
    """What became of a task. ``program``: as JSON, of failures."""

    task: Task
    kind: str
    text: str = ""
    stats: dict[str, int] = field(default_factory=dict)
    program: dict[str, Any] | None = None
    before: list[Task] = field(default_factory=list)  # what had run in the same child

    @property
    def failed(self) -> bool:
        return self.kind not in ("same", "refused", "unusable")


def import_everything() -> None:
    """Imports what programs use, so that children find it, but starts no thread."""
    import torch._dynamo  # noqa: F401
    import torch.func  # noqa: F401
    import torch.utils.checkpoint  # noqa: F401

    import torch_lms._library

    torch_lms._library.ops()


def run_all(tasks: Iterable[Task], device: str, jobs: int, batch: int) -> Iterator[Result]:
    """The results of all tasks, as they come. The order is that of the tasks with one job."""
    waiting = iter(tasks)
    again: deque[list[Task]] = deque()
    children: dict[int, _Child] = {}
    selector = selectors.DefaultSelector()

    def start() -> bool:
        part = again.popleft() if again else _take(waiting, batch)
        if part:
            child = _Child(part, device)
            children[child.reader] = child
            selector.register(child.reader, selectors.EVENT_READ)
        return bool(part)

    try:
        while True:
            while len(children) < jobs and start():
                pass
            if not children:
                return
            for key, _ in selector.select(timeout=1.0):
                child = children[int(key.fd)]
                yield from child.take()
            for reader, child in list(children.items()):
                if not child.ended and child.late():
                    child.kill()
                if child.ended:
                    selector.unregister(reader)
                    del children[reader]
                    yield from child.finish()
                    if child.left:
                        again.append(child.left)
    finally:
        for child in children.values():
            child.kill()
            list(child.finish())


def crashes_plainly(program: dict[str, Any], device: str) -> bool:
    """Whether PyTorch ends the process without LMS as well, in one of some plain runs."""
    task = program | {"plain_runs": 10}
    return any(result.kind == "unusable" for result in run_all([task], device, 1, 1))


def _take(tasks: Iterator[Task], count: int) -> list[Task]:
    return list(itertools.islice(tasks, count))


class _Child:
    """A forked process, and what it has said so far."""

    def __init__(self, tasks: list[Task], device: str) -> None:
        self.tasks = tasks
        self.left = list(tasks)
        self.done: list[Task] = []
        self.current: tuple[str, int] | None = None
        self.programs: dict[int, dict[str, Any]] = {}
        self.ended = False
        self.killed = False
        self.since = time.monotonic()
        self.text = b""
        self.errors: BinaryIO = tempfile.TemporaryFile()
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _child(tasks, device, writer, self.errors.fileno())
        os.close(writer)
        os.set_blocking(self.reader, False)

    def late(self) -> bool:
        return time.monotonic() - self.since > TIMEOUT

    def kill(self) -> None:
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGABRT)  # faulthandler tells where it hangs
            time.sleep(0.2)
            os.kill(self.pid, signal.SIGKILL)
        self.ended = True

    def take(self) -> Iterator[Result]:
        """Reads what there is; results of programs that have ended."""
        with contextlib.suppress(BlockingIOError):
            part = os.read(self.reader, 1 << 20)
            self.ended = self.ended or not part
            self.text += part
        *lines, self.text = self.text.split(b"\n")
        for line in lines:
            self.since = time.monotonic()
            said = json.loads(line)
            index = said["index"]
            if "phase" in said:
                self.current = said["phase"], index
                if said.get("program"):
                    self.programs[index] = said["program"]
                continue
            self.current = None
            task = self.tasks[index]
            self.left.remove(task)
            result = Result(task, said["kind"], said["text"], said["stats"])
            if result.failed:
                result.program = self.programs.get(index)
                result.before = list(self.done)
            self.done.append(task)
            yield result

    def finish(self) -> Iterator[Result]:
        """Waits for the end; the result of the program that the child died in."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.reader)
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and self.current is None and self.left:
            self.current = "start", self.tasks.index(self.left[0])
        if self.current is None:
            self.errors.close()
            return
        phase, index = self.current
        self.errors.seek(0)
        said = self.errors.read()[-2500:].decode(errors="replace")
        what = "hang" if self.killed else "crash"
        kind = "unusable" if phase == "plain" else what
        task = self.tasks[index]
        self.left.remove(task)
        yield Result(
            task, kind, f"{phase}, status {code}: {said}", {}, self.programs.get(index), self.done
        )
        self.errors.close()


def _child(tasks: list[Task], device: str, writer: int, errors: int) -> None:
    """A child's life; does not return."""
    code = 1
    try:
        os.dup2(errors, 2)
        os.dup2(errors, 1)
        faulthandler.enable(file=2)
        torch.set_num_threads(1)
        import warnings

        warnings.filterwarnings("ignore")
        if device.startswith("cuda"):
            # Little, and the same for every stream: results do not depend on what else runs.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False
            torch.backends.cudnn.benchmark = False
        gc.collect()
        gc.freeze()
        _run(tasks, device, writer)
        code = 0
    except BaseException:
        traceback.print_exc(file=os.fdopen(os.dup(2), "w"))
    finally:
        os._exit(code)


def _run(tasks: list[Task], device: str, writer: int) -> None:
    import torch_lms

    from . import beside
    from .digest import Reader
    from .execute import (
        ENOUGH,
        REFUSED_BEFORE,
        run_managed,
        run_plain,
        takes_plainly,
        varies,
    )
    from .generate import make
    from .leaks import leaks_as_well

    def say(**words: Any) -> None:
        os.write(writer, json.dumps(words).encode() + b"\n")

    on_gpu = device.startswith("cuda")
    reader = Reader((1 << 20) * (256 if on_gpu else 1), pinned=on_gpu)
    made = []
    for index, task in enumerate(tasks):
        say(index=index, phase="plain", program=task if isinstance(task, dict) else None)
        if isinstance(task, int):
            program, trail = make(task, reader, device)
        else:
            program = Program.from_json(task)
            trail = run_plain(program, reader)
            for _ in range(task.get("plain_runs", 0)):
                run_plain(program, reader)
        made.append((index, program, trail))
    # min_block can only become smaller.
    made.sort(key=lambda item: (item[1].ballast, -item[1].settings.min_block))
    failed = []
    for bytes_, programs in itertools.groupby(made, key=lambda item: item[1].ballast):
        with beside.ballast(device, bytes_):
            on = False
            for index, program, trail in programs:
                if not on:
                    settings = program.settings.arguments() | {"limit": 1 << 30}
                    torch_lms.enable(**with_units(settings), device=device, plan_cache="off")
                    on = True
                say(index=index, phase="managed", program=program.to_json())
                verdict = run_managed(program, reader, trail, is_known)
                if verdict.failed:
                    failed.append((index, program, trail, verdict))
                    continue
                say(index=index, kind=verdict.kind, text=verdict.text[:4000], stats=verdict.stats)
            torch_lms.disable()
    for index, program, trail, verdict in failed:
        say(index=index, phase="plain", program=program.to_json())
        kind, text = verdict.kind, verdict.text[:4000]
        if varies(program, reader, trail):
            kind, text = "unusable", "plain runs differ"
        elif kind == "leak" and leaks_as_well(program, reader, text.startswith(REFUSED_BEFORE)):
            kind = "same"
        elif kind == "memory" and takes_plainly(program, reader, trail) > ENOUGH // 2:
            kind, text = "unusable", "takes too much in plain PyTorch"
        say(index=index, kind=kind, text=text, stats=verdict.stats)
