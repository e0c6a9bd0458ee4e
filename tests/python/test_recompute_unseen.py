"""What nobody tells of: writes through older pointers, and how threads round."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from recompute_support import N, counts, numbers
from stress.compare import bits_of, differences
from torch import Tensor

import torch_lms


def _numpy(one: Tensor) -> Callable[[int, float], None]:
    array = one.numpy()

    def write(at: int, value: float) -> None:
        array[at] = value

    return write


def _through(other: Tensor) -> Callable[[int, float], None]:
    array = other.numpy()

    def write(at: int, value: float) -> None:
        array.reshape(-1)[at] = value

    return write


WAYS: dict[str, Callable[[Tensor], tuple[Tensor, Callable[[int, float], None]]]] = {
    "numpy": lambda one: (one, _numpy(one)),
    "from_numpy": lambda one: (torch.from_numpy(array := one.numpy().copy()), array.__setitem__),
    "dlpack": lambda one: (one, _through(torch.from_dlpack(one))),
    "a view's array": lambda one: (one, _through(one.view(2, 2))),
    "frombuffer": lambda one: (
        torch.frombuffer(memory := bytearray(one.numpy().tobytes()), dtype=torch.float32),
        _through(torch.frombuffer(memory, dtype=torch.float32)),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_small_tensors_are_written_through_what_is_older_than_management(way: str) -> None:
    def program(w: Tensor, write: Callable[[int, float], None]) -> Any:
        x = numbers(1, 1024, 4)
        y = x * w
        write(0, 7)
        z = x * w
        u = x + w
        write(1, 8)
        v = x * w
        return y, z, u, v, w.clone()

    expected = bits_of(program(*WAYS[way](torch.arange(4.0))))
    w, write = WAYS[way](torch.arange(4.0))
    with torch_lms.managed(device="cpu", limit="256MiB", min_block=N, stress="drop"):
        before = counts()
        result = program(w, write)
        assert not differences(expected, bits_of(result))
        assert counts(before)["remakes"] > 0, "nothing was dropped: it shows nothing"


FLUSHING = """
import sys, threading
import numpy, torch, torch_lms

N = 1 << 18  # enough for all threads

def tiny():
    return torch.full((N,), 1e-38) * torch.arange(1, N + 1).remainder(7)

def bits(one):
    return one.clone().view(torch.int32).numpy().copy()  # now, and not when somebody looks

def in_thread(work):
    results = []
    def run():
        # Those that help this thread begin with what it has now.
        torch.set_flush_denormal(True)
        torch.ones(N).sin()
        torch.set_flush_denormal(False)
        results.append(work())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]

def others():
    x = tiny()
    torch.set_flush_denormal(True)
    y = x * 0.25
    torch.set_flush_denormal(False)
    return x, y

torch.set_num_threads(2)
expected = bits(tiny() * 0.25)
assert (expected != 0).sum() > N // 2
first, flushed = map(bits, others())
assert not numpy.array_equal(flushed, expected)
torch.set_flush_denormal(False)
with torch_lms.managed(device="cpu", limit="256MiB", min_block=4096, stress="drop"):
    x = tiny()
    y = x * 0.25
    z = x * 0.25
    u = x * 0.25
    dropped = torch_lms.memory_stats("cpu")["drops"]
    assert dropped > 0
    if sys.argv[1] == "on":
        torch.set_flush_denormal(True)
        again = bits(y)
        # And it is as it was before.
        assert not numpy.array_equal(bits(x * 0.25), expected)
        torch.set_flush_denormal(False)
        assert numpy.array_equal(again, expected)
    elif sys.argv[1] == "helpers":
        assert numpy.array_equal(in_thread(lambda: bits(z)), expected)
    else:
        a, b = others()
        assert numpy.array_equal(bits(b), flushed), "first run with what is flushed"
        c = in_thread(lambda: x * 0.25)
        assert numpy.array_equal(bits(u), expected)
        plain = bits(c)
        assert numpy.array_equal(plain[: N // 2], expected[: N // 2])
print("same")
"""


@pytest.mark.parametrize("when", ["on", "helpers", "first"])
def test_what_is_too_small_to_be_normal_is_as_it_was_first(when: str) -> None:
    """In a process of its own: whoever has once helped while it was flushed may do so for good."""
    package = Path(torch_lms.__file__).resolve().parents[1]
    run = subprocess.run(
        [*forked.command(), "-c", FLUSHING, when],
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout.strip() == "same", run.stderr[-2000:]


def test_nothing_is_computed_while_nobody_can_tell_how() -> None:
    """The older and the newer settings contradict each other: an error, not other bits."""
    x = numbers(1)
    expected = bits_of(x * 2)
    matmul = torch.backends.cuda.matmul
    with torch_lms.managed(device="cpu", limit="256MiB", min_block=4096, stress="drop"):
        y = numbers(1) * 2
        before = matmul.fp32_precision
        torch.set_float32_matmul_precision("highest")
        matmul.fp32_precision = "tf32"
        try:
            with pytest.raises(RuntimeError, match="contradict each other"):
                y.clone()
        finally:
            matmul.fp32_precision = before
        assert not differences(expected, bits_of(y))
