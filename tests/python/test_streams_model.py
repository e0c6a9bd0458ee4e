"""Stream order without a GPU: LMS on a model of CUDA that sees every race.

The model (``tests/model_cuda``) stands in for the CUDA runtime: copies, streams and events do what
CUDA promises and no more, and two operations that touch the same bytes are reported if neither is
ordered after the other, however they happened to run. It must be there when PyTorch is loaded, so
the tests run in a process of their own, which the last one starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import stream_programs as programs
import torch
from stress.probe import send_away

import torch_lms
from torch_lms._library import library_path

LIBRARY = library_path().resolve().parent / "libmodel_cuda.so"
MODEL = ctypes.CDLL(None)
LOADED = hasattr(MODEL, "model_cuda_races")
on_model = pytest.mark.skipif(not LOADED, reason="runs within test_on_the_model")


def races() -> list[str]:
    """What has raced since the last call."""
    text = ctypes.create_string_buffer(1 << 16)
    MODEL.model_cuda_races(text, len(text))
    return text.value.decode().splitlines()


def check(result: programs.Result) -> None:
    """No race, and the values that must be."""
    torch.cuda.synchronize()
    assert races() == []
    for tensor, value in result:
        assert bool((tensor.cpu() == value).all()), (tensor.cpu(), value)
    assert races() == []


def leave_alone(_: torch.Tensor) -> None:
    """What evicts in a plain run."""


def evict_if_it_may(tensor: torch.Tensor) -> None:
    """Evicts what may leave."""
    torch.ops.lms.evict(tensor)


@contextlib.contextmanager
def managed(arena: bool) -> Iterator[None]:
    """LMS with an arena or, under the least of limits, without."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    limit = "512MiB" if arena else "127MiB"
    with torch_lms.managed(device="cuda", limit=limit, min_block="64KiB"):
        yield
    races()


@on_model
def test_the_model_sees_a_race() -> None:
    """A write beside a read."""
    x = programs.large(1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.clone()
    x.fill_(2.0)
    assert len(races()) == 1
    torch.cuda.synchronize()
    del y


@on_model
@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
def test_program(program, arena: bool) -> None:
    """Right in plain PyTorch, and so under LMS."""
    check(program(leave_alone))
    with managed(arena):
        check(program(send_away))


@on_model
@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
def test_random_programs(arena: bool) -> None:
    """Random programs, first without LMS: there the program itself would be wrong."""
    for seed in range(int(os.environ.get("MODEL_CUDA_SEEDS", "12"))):
        check(programs.random_program(seed, leave_alone))
        with managed(arena):
            try:
                check(programs.random_program(seed, evict_if_it_may))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error


def test_on_the_model() -> None:
    """Runs the tests above."""
    if LOADED:
        return
    if not LIBRARY.exists() or b"model_cuda_races" not in LIBRARY.read_bytes():
        pytest.skip("there is no model of this CUDA")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command,
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
