"""Processes that tests start: forked children, and scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forked
import torch


def in_child(work: Callable[[], bool]) -> int:
    """Runs ``work`` in a forked child; 0 if it is true, 2 if not, 1 after an exception."""
    torch.set_num_threads(1)  # a forked child has no thread pool
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    signal.alarm(60)
    try:
        status = os.waitpid(child, 0)[1]
    finally:
        signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def environment() -> dict[str, str]:
    """This process's, with its paths to modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_script(
    code: str, *arguments: str, start: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, which says nothing of warnings; ``start``: by this
    interpreter, and not a forked one."""
    return subprocess.run(
        [*(start or forked.command()), "-W", "ignore", "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def run_tests(name: str, *arguments: str, **variables: str) -> None:
    """Runs a file of tests beside this folder in a process with these variables; all must pass."""
    tests = Path(__file__).resolve().parents[1] / name
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(tests), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
