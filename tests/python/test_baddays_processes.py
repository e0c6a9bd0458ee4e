"""Bad days: forks, and processes that end while blocks are out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import forked
import pytest
import torch
from stress import harness
from stress.children import environment, in_child, run_script
from stress.probe import block, reference, same, send_away

pytestmark = pytest.mark.filterwarnings("ignore")

PROLOGUE = """
    import os, sys
    import torch, torch_lms
    device = {device!r}
    torch_lms.enable(device=device, limit="4MiB", min_block="4KiB")
    kept = [torch.full((256, 256), float(i), device=device).add_(0) for i in range(64)]
    assert torch_lms.memory_stats(device)["evictions"] > 30
    print("ready", flush=True)
"""

ENDINGS = {
    "end of script": "",
    "sys.exit": "sys.exit(0)",
    "os._exit": "os._exit(0)",
    "disable first": "torch_lms.disable(); assert all((x == i).all() for i, x in enumerate(kept))",
    "tensors die first": "kept.clear()",
    "a module keeps them": "sys.modules['os'].kept = kept",
    # Not a daemon thread: plain PyTorch itself aborts when one is inside an operator at exit.
    "in a thread": """
import threading, time
stop = time.monotonic() + 0.5
def work():
    while time.monotonic() < stop:
        kept[0].add_(kept[1])
threading.Thread(target=work).start()
""",
    "atexit reads": """
import atexit
atexit.register(lambda: print(bool(all((x == i).all() for i, x in enumerate(kept)))))
""",
    "a cycle": "kept.append(kept)",
    "under stress": """
torch_lms.enable(device=device, min_block="4KiB", stress=True)
kept = [x * 2 for x in kept]
""",
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _script(device: str, body: str) -> str:
    return textwrap.dedent(PROLOGUE).format(device=device) + textwrap.dedent(body)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("device", DEVICES)
def test_exit_with_blocks_out(device: str, ending: str) -> None:
    """Status 0 and not a word on standard error."""
    harness.lms()
    start = [sys.executable] if ending == "end of script" else None
    done = run_script(_script(device, ENDINGS[ending]), start=start)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready")
    assert done.stderr == ""
    if ending == "atexit reads":
        assert "True" in done.stdout


@pytest.mark.parametrize("device", DEVICES)
def test_uncaught_exception_ends_as_usual(device: str) -> None:
    """The user's own traceback, status 1, and nothing of ours."""
    harness.lms()
    done = run_script(_script(device, "raise ValueError('the user made a mistake')"))
    assert done.returncode == 1
    assert done.stderr.strip().endswith("ValueError: the user made a mistake")
    assert "lms" not in done.stderr.lower().replace("torch_lms.enable", "")


@pytest.mark.parametrize("device", DEVICES)
def test_interrupt_and_termination(device: str) -> None:
    """Ctrl-C and SIGTERM end a working process promptly, as they do without us."""
    harness.lms()
    body = """
    while True:
        for x in kept:
            x.add_(1)
    """
    # A test run in the background of a shell ignores Ctrl-C, and its children would too.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    for sent, expected in ((signal.SIGINT, (1, 130, -signal.SIGINT)), (signal.SIGTERM, (-15,))):
        child = subprocess.Popen(
            [*forked.command(), "-W", "ignore", "-c", heed + _script(device, body)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        child.send_signal(sent)
        try:
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
        assert child.returncode in expected, errors
        if sent == signal.SIGINT:
            assert "KeyboardInterrupt" in errors
        else:
            assert errors == ""


def test_no_files_are_left_behind(tmp_path: object) -> None:
    """The file tier is gone with its process, however that ended."""
    harness.lms()
    for ending in ("", "os._exit(0)", "os.kill(os.getpid(), 9)"):
        code = _script("cpu", ending).replace(
            'limit="4MiB"', f'limit="4MiB", directory={str(tmp_path)!r}'
        )
        done = run_script(code)
        assert done.stdout.startswith("ready"), done.stderr
        assert os.listdir(str(tmp_path)) == [], f"after {ending!r}"


def test_fork_child_reads_blocks_that_are_out() -> None:
    """Every block, wherever it is, has the parent's bytes in a child."""
    with harness.managed("cpu", limit="1MiB"):
        kept = [block(128, 128, device="cpu", value=i) for i in range(48)]
        wanted = [reference(128, 128, value=i).numpy().tobytes() for i in range(48)]
        raw = [torch._C.TensorBase.data_ptr(x) for x in kept]

        def by_operator() -> bool:
            return all((x * 1).numpy().tobytes() == w for x, w in zip(kept, wanted, strict=True))

        def by_address() -> bool:
            import ctypes

            return all(ctypes.string_at(p, len(w)) == w for p, w in zip(raw, wanted, strict=True))

        torch.set_num_threads(1)  # a forked child has no thread pool
        assert in_child(by_address) == 0
        assert in_child(by_operator) == 0
        # Not by numpy(), which keeps what it was given: all of them do not fit at once.
        for index, x in enumerate(kept):
            assert same(x, reference(128, 128, value=index)), f"block {index}"


def test_fork_child_writes_stay_its_own() -> None:
    """What a child writes, through operators or raw, does not reach the parent or its file."""
    with harness.managed("cpu", limit="1MiB"):
        kept = [block(128, 128, device="cpu", value=i) for i in range(48)]
        for x in kept[::2]:
            torch.ops.lms.evict(x)

        def work() -> bool:
            for x in kept:
                x.fill_(-1)
            more = [torch.full((128, 128), 7.0) * 1 for _ in range(48)]
            return all(bool((x == -1).all()) for x in kept) and all(
                bool((x == 7).all()) for x in more
            )

        def raw() -> bool:
            for x in kept:
                x.numpy()[:] = -2
            return True

        assert in_child(work) == 0
        assert in_child(raw) == 0
        for index, x in enumerate(kept):
            assert same(x, reference(128, 128, value=index)), f"block {index}"


def test_parent_goes_on_while_a_child_reads() -> None:
    """A child's picture does not change when the parent changes, evicts and frees."""
    with harness.managed("cpu", limit="1MiB"):
        kept = [block(128, 128, device="cpu", value=i) for i in range(48)]
        wanted = [reference(128, 128, value=i).numpy().tobytes() for i in range(48)]
        go_read, go_write = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(go_read, 1)  # until the parent has changed everything
                right = all(
                    (x * 1).numpy().tobytes() == w for x, w in zip(kept, wanted, strict=True)
                )
                code = 0 if right else 2
            finally:
                os._exit(code)
        for index, x in enumerate(kept):
            x.add_(1)
            if index % 3 == 0:
                send_away(x)
        others = [block(128, 128, device="cpu", value=100 + i) for i in range(48)]
        os.write(go_write, b"x")
        signal.alarm(60)
        try:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            signal.alarm(0)
            os.close(go_read)
            os.close(go_write)
        for index, x in enumerate(kept):
            assert same(x, reference(128, 128, value=index) + 1)
        for index, x in enumerate(others):
            assert same(x, reference(128, 128, value=100 + index))


def test_unsupported_torch_version() -> None:
    """Refused by name, before anything is loaded (the check itself is tested with the package)."""
    harness.lms()
    code = "import torch; torch.__version__ = '1.4.0'; import torch_lms; torch_lms.enable()"
    done = run_script(code)
    assert done.returncode == 1
    assert "1.4.0" in done.stderr
