"""What ``lms top`` shows: once a second a thread writes what LMS does to a small file.

The file is ``PID.json`` in the user's own folder; it goes when the process ends by itself, and
``lms top`` removes those of processes that were killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SECONDS = 1.0
_STEP_WINDOW = 30.0  # seconds over which steps are timed
VERSION = 1

Device = Mapping[str, Any]  # "device", "settings", "state", "stats"

_log = logging.getLogger("torch_lms")


def folder() -> Path:
    """Where the files are: the user's folder for what runs, else one in ``/tmp``."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime) / "lms"
    return Path(f"/tmp/lms-{os.getuid()}")


def make_folder() -> Path:
    """The folder, which is the user's alone. PermissionError if somebody else has made it."""
    path = folder()
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder of this user alone")
    return path


def started(pid: int) -> int:
    """When a process began, in ticks of the system: with its number it names a process for good."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])


class Rates:
    """What changed between the samples of a device."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None
        self._steps: deque[tuple[float, int]] = deque()  # when the number of planned steps changed
        self._plan = (0, 0)

    def after(self, now: float, stats: Mapping[str, int]) -> dict[str, Any]:
        """Bytes a second each way since the last sample, and the milliseconds of a planned step
        over the last ones; None where there is nothing to compare with."""
        found: dict[str, Any] = {"out_per_s": None, "in_per_s": None}
        out, back = stats["bytes_out"], stats["bytes_in"]
        if self._last is not None and now > self._last[0]:
            seconds = now - self._last[0]
            found["out_per_s"] = (out - self._last[1]) / seconds
            found["in_per_s"] = (back - self._last[2]) / seconds
        self._last = (now, out, back)
        return found | self._step(now, stats)

    def _step(self, now: float, stats: Mapping[str, int]) -> dict[str, Any]:
        steps = stats["plan.steps"]
        plan = (stats["plan.predicted_us"], stats["plan.divergences"])
        if plan != self._plan:  # times under another plan, or of a step that left it, say nothing
            self._plan = plan
            self._steps.clear()
        if not self._steps or steps != self._steps[-1][1]:
            self._steps.append((now, steps))
        while len(self._steps) > 2 and self._steps[-1][0] - self._steps[1][0] >= _STEP_WINDOW:
            self._steps.popleft()
        (begin, first), (end, last) = self._steps[0], self._steps[-1]
        ms = (end - begin) * 1e3 / (last - first) if last > first else None
        return {"step_ms": ms, "steps_timed": last - first}


class Monitor:
    """Writes the file of this process until it is stopped. What goes wrong in the thread stays
    there: training goes on."""

    def __init__(self, sample: Callable[[], list[Device]]) -> None:
        self._sample = sample
        self._rates: dict[str, Rates] = {}
        self._done = threading.Event()
        self.pid = os.getpid()
        self.path = make_folder() / f"{self.pid}.json"
        self._who = {
            "format": "lms-monitor",
            "version": VERSION,
            "pid": self.pid,
            "started": started(self.pid),
            "command": list(sys.orig_argv),
        }
        self._thread = threading.Thread(target=self._run, name="lms-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and removes the file; in a forked child, where neither is its own, does
        nothing."""
        if os.getpid() != self.pid:
            return
        self._done.set()
        self._thread.join(5)
        for path in (self.path, self._new()):
            path.unlink(missing_ok=True)

    def _new(self) -> Path:
        return self.path.with_suffix(".json.new")

    def _run(self) -> None:
        while not self._done.is_set():
            with contextlib.suppress(Exception):
                self.write()
            self._done.wait(SECONDS)

    def write(self) -> None:
        """One sample."""
        now = time.monotonic()
        devices = []
        for device in self._sample():
            rates = self._rates.setdefault(device["device"], Rates())
            devices.append({**device, **rates.after(now, device["stats"])})
        sample = {**self._who, "time": time.time(), "devices": devices}
        new = self._new()
        # Without a buffer, which a forked child would have, too, and write at its end.
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(file, json.dumps(sample).encode())
        finally:
            os.close(file)
        new.replace(self.path)  # readers see the old sample or this one, whole


_monitor: Monitor | None = None


def run(wanted: bool, sample: Callable[[], list[Device]]) -> None:
    """There is a monitor of this process from now on, or there is none. A folder that cannot be
    used is a warning."""
    global _monitor
    mine = _monitor is not None and _monitor.pid == os.getpid()
    if wanted and not mine:
        try:
            _monitor = Monitor(sample)
        except OSError as error:
            _log.warning("lms top will not see this process: %s", error)
    elif not wanted and mine:
        _stop()


@atexit.register
def _stop() -> None:
    global _monitor
    if _monitor is not None:
        _monitor.stop()
        _monitor = None
