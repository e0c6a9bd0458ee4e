"""Writes to what dropped tensors are computed from: they end, and nothing is lost."""

from __future__ import annotations

import threading

import pytest
import torch
from recompute_support import counts, numbers
from torch import Tensor

import torch_lms

COUNT = 1 << 18
BLOCK = 4 * COUNT
RESULTS = 16


def _results(source: Tensor, made: list[Tensor]) -> None:
    while len(made) < RESULTS:
        made.append(source * (1 + len(made)))


def _expected() -> tuple[list[Tensor], Tensor]:
    source, made = numbers(1, COUNT), []
    _results(source, made)
    return made, source.clone().add_(1)


def _managed(limit: int, host: int) -> object:
    return torch_lms.managed(
        device="cpu",
        limit=limit * BLOCK,
        host_limit=host * BLOCK,
        min_block=BLOCK,
        recompute=True,
    )


def test_no_room_for_what_a_write_would_take_away_is_an_error() -> None:
    """And nothing is lost: with more memory everything is there, and the write can be done."""
    expected, written = _expected()
    with _managed(limit=8, host=3):
        before = counts()
        source, made = numbers(1, COUNT), []
        _results(source, made)
        assert counts(before)["drops"] > 0, "it shows nothing"
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="Nothing was lost"):
                source.add_(1)
        torch_lms.enable(device="cpu", limit=32 * BLOCK)
        source.add_(1)
        assert torch.equal(source, written)
        assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))


@pytest.mark.parametrize("host", [11, 40])
def test_a_write_for_which_there_is_room_is_done(host: int) -> None:
    expected, written = _expected()
    with _managed(limit=8, host=3):
        before = counts()
        source, made = numbers(1, COUNT), []
        _results(source, made)
        assert counts(before)["drops"] > 0, "it shows nothing"
        torch_lms.enable(device="cpu", host_limit=host * BLOCK)
        source.add_(1)
        assert torch.equal(source, written)
        assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))


def test_a_dropped_tensor_is_written() -> None:
    """It is computed first, and so is what is computed from it."""
    expected, written = _expected()
    with _managed(limit=8, host=3):
        source, made = numbers(1, COUNT), []
        _results(source, made)
        torch_lms.enable(device="cpu", host_limit=40 * BLOCK)
        for i, one in enumerate(made):
            one.add_(i)
        source.add_(1)
        assert torch.equal(source, written)
        for i, (one, other) in enumerate(zip(made, expected, strict=True)):
            assert torch.equal(one, other + i)


def test_threads_that_write_at_once_all_end() -> None:
    """Each drops what the other's write has to compute first."""
    expected, _ = _expected()
    with _managed(limit=10, host=4):
        sources = [numbers(1, COUNT), numbers(1, COUNT)]
        made: list[list[Tensor]] = [[], []]
        for source, results in zip(sources, made, strict=True):
            results.extend(source * (1 + i) for i in range(RESULTS // 2))
        start = threading.Barrier(2)
        refused: list[int] = []

        def write(index: int) -> None:
            start.wait()
            try:
                sources[index].add_(1)
            except torch.OutOfMemoryError:
                refused.append(index)

        threads = [threading.Thread(target=write, args=(i,), daemon=True) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a thread hangs"
        torch_lms.enable(device="cpu", limit=64 * BLOCK)
        before = numbers(1, COUNT)
        for index, source in enumerate(sources):
            assert torch.equal(source, before if index in refused else before + 1)
        for results in made:
            assert all(
                torch.equal(one, other) for one, other in zip(results, expected, strict=False)
            )
