"""Forked interpreters are as interpreters of their own, in all that a test may look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.pinned

LOOKS = """
import json, os, sys, warnings
main = sys.modules["__main__"]
class Thing: pass
print(json.dumps({
    "name": __name__, "argv": sys.argv, "path": sys.path, "folder": os.getcwd(),
    "variables": dict(os.environ), "file": getattr(main, "__file__", None), "input": input(),
    "main": main.Thing is Thing, "executable": sys.executable, "mask": os.umask(0),
    "threads": len(os.listdir("/proc/self/task")), "files": sorted(os.listdir("/proc/self/fd")),
    "signals": [str(signal_of(n)) for signal_of in [__import__("signal").getsignal]
                for n in (1, 2, 13, 15, 17)],
    "encodings": [(s.encoding, s.errors, s.line_buffering)
                  for s in (sys.stdin, sys.stdout, sys.stderr)],
    "words": sys.orig_argv[1:],
}))
warnings.warn("a word")
print("an error", file=sys.stderr)
"""

ENDINGS = {
    "end": "",
    "exit": "sys.exit(5)",
    "in words": "sys.exit('no')",
    "at once": "print('lost'); os._exit(3)",
    "exception": "def f():\n    raise KeyError('mine')\nf()",
    "syntax": "f(",
    "abort": "os.abort()",
    "killed": "os.kill(os.getpid(), 9)",
    "thread": "threading.Timer(0.1, lambda: print('thread')).start(); print('main')",
    "atexit": "atexit.register(lambda: print(kept)); kept = [1]",
    "finalizer": "class A:\n    def __del__(self):\n        os.write(1, b'died')\nkept = A()",
}


@pytest.fixture(autouse=True)
def _in_the_foreground() -> Iterator[None]:
    """In the background of a shell an interrupt is ignored, and would be by plain interpreters."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def both(
    words: list[str], modules: tuple[str, ...] = (), **options: object
) -> list[subprocess.CompletedProcess[str]]:
    """What an interpreter and what a forked one does with a command line."""
    return [
        subprocess.run([*start, *words], capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]
        for start in ([sys.executable], forked.command(*modules))
    ]


def same(pair: list[subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    one, other = pair
    assert other.stdout == one.stdout
    assert other.stderr == one.stderr
    assert other.returncode == one.returncode
    return other


def test_they_are_forked() -> None:
    assert len(forked.command()) > 1


def test_what_a_program_sees(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    for file in (tmp_path / "looks.py", package / "looks.py"):
        file.write_text(LOOKS)
    variables = {"PATH": os.environ["PATH"], "A": "ä", "PYTHONPATH": f"{tmp_path}:/none"}
    options = {"env": variables, "cwd": package, "input": "said\n"}
    for words in (["-c", LOOKS], [str(tmp_path / "looks.py")], ["-m", "package.looks"]):
        done = same(both(["-W", "ignore", *words, "-x", "y"], **options))
        assert done.stderr == "an error\n" and "__main__" in done.stdout


@pytest.mark.parametrize("ending", ENDINGS)
def test_ends(ending: str) -> None:
    head = "import atexit, os, sys, threading\n"
    done = same(both(["-c", head + ENDINGS[ending]]))
    assert (done.returncode == 0) == (ending in ("end", "thread", "atexit", "finalizer"))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_it(sent: signal.Signals) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    child = subprocess.Popen([*forked.command(), "-c", code], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    child.send_signal(sent)
    _, errors = child.communicate(timeout=60)
    if sent == signal.SIGINT:
        assert child.returncode == 130 and errors.endswith("\nKeyboardInterrupt\n")
    else:
        assert child.returncode == -sent and errors == ""
    for _ in range(600):  # one that was killed takes its child along
        if not os.path.exists(f"/proc/{pid}"):
            break
        signal.sigtimedwait([], 0.1)
    assert not os.path.exists(f"/proc/{pid}")


def test_one_knows_nothing_of_another() -> None:
    program = "import sys, torch; print(torch.rand(1), hasattr(torch, 'mark')); torch.mark = 1"
    one, other = (
        subprocess.run([*forked.command(), "-c", program], capture_output=True, text=True)
        for _ in range(2)
    )
    assert one.stdout == other.stdout and "False" in one.stdout


def test_others_are_imported_as_well() -> None:
    code = "import sys; print('torch' in sys.modules, 'torch.distributed.run' in sys.modules)"
    said = [
        subprocess.run([*forked.command(*more), "-c", code], capture_output=True, text=True).stdout
        for more in ((), ("torch.distributed.run",))
    ]
    assert said == ["True False\n", "True True\n"]
