"""Every program, plain and with every block evicted, or dropped and computed again, after every
operator: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stress import harness
from stress.probe import repeatable_cudnn
from stress.programs import PROGRAMS, Program
from stress.registry import seed

pytestmark = pytest.mark.filterwarnings("ignore")


def _cases() -> list[Any]:
    cases = []
    for item in PROGRAMS.values():
        for device in item.devices:
            marks = [pytest.mark.gpu] if device == "cuda" else []
            if item.slow:
                marks.append(pytest.mark.slow)
            cases.append(pytest.param(item, device, id=f"{item.name}-{device}", marks=marks))
    return cases


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """cuDNN's and cuBLAS's repeatable algorithms, so that there is something to compare."""
    # By the context, which works also once PyTorch's own test helpers have frozen the flags.
    with repeatable_cudnn():
        seed()
        yield


@pytest.mark.parametrize(("item", "device"), _cases())
def test_evict_everything(item: Program, device: str) -> None:
    """Stress mode: results, gradients, weights and optimizer state agree to the last bit."""
    expected = harness.plain_bits(item, device)
    stats = harness.run_managed(item, device, expected, stress=True)
    if item.evicts:
        assert stats["evictions"] > 0, "nothing was evicted, so the comparison shows nothing"
        assert stats["page_ins"] > 0, "nothing came back, so the comparison shows nothing"


# Dropped memory of the CPU must not be read unheard.
DROPPED = [c for c in _cases() if not (c.values[0].reads_unheard and c.values[1] == "cpu")]


@pytest.mark.parametrize(("item", "device"), DROPPED)
def test_drop_everything(item: Program, device: str) -> None:
    """The same, but what can be computed again is dropped and not copied."""
    expected = harness.plain_bits(item, device)
    stats = harness.run_managed(item, device, expected, stress="drop")
    if item.drops:
        assert stats["drops"] > 0, "nothing was dropped, so the comparison shows nothing"
        assert stats["remakes"] > 0, "nothing was computed again, so the comparison shows nothing"


def _tight_cases() -> list[Any]:
    # On a GPU test_gpu_limits.py does this, in sizes above the allocator's granularity.
    return [
        case
        for case in _cases()
        if case.values[0].tight and not case.values[0].slow and case.values[1] == "cpu"
    ]


@pytest.mark.parametrize(("item", "device"), _tight_cases())
def test_tight_limit(item: Program, device: str) -> None:
    """Reactive reclaim under half of the peak, or under the least that the program can run in."""
    expected = harness.plain_bits(item, device)
    roomy = harness.run_managed(item, device, expected, limit="64GiB" if device == "cpu" else None)
    peak = roomy["device.bytes.peak"]
    limit = peak // 2
    # Many rounds: an operator that allocates in small parts names one more of them each time.
    for _ in range(40):
        try:
            stats = harness.run_managed(item, device, expected, limit=f"{limit}B")
            break
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            # The promise under test: the named limit suffices for the operator that failed. A later
            # operator may need more still, and then names its own.
            larger = harness.smallest_workable_limit(error)
            assert larger > limit, f"the error names {larger}, which is not above {limit}: {error}"
            limit = larger
    else:
        pytest.fail(f"still out of memory at {limit} of {peak} bytes")
    assert stats["device.bytes.peak"] <= limit, "the limit was not kept"
    if limit < peak:
        assert stats["evictions"] > 0, f"peak {peak}, limit {limit}, and nothing left the device"
