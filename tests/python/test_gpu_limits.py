"""Reactive reclaim on a GPU, in sizes above the granularity of PyTorch's allocator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from stress import harness
from stress.probe import block, reference, same, state

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
MIB = 1 << 20
OUT_OF_MEMORY = (torch.OutOfMemoryError,)


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    """Memory that earlier tests left in PyTorch's cache would soften the limits."""
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def _train(steps: int) -> dict[str, bytes]:
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        layers: list[torch.nn.Module] = []
        for index in range(5):
            layers += [
                torch.nn.Conv2d(64 if index else 3, 64, 3, padding=1),
                torch.nn.BatchNorm2d(64),
                torch.nn.ReLU(inplace=True),
            ]
        layers += [torch.nn.AvgPool2d(12), torch.nn.Flatten()]
        layers += [torch.nn.Linear(64 * 16 * 16, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)]
        model = torch.nn.Sequential(*layers).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        losses = []
        for step in range(steps):
            generator = torch.Generator("cuda").manual_seed(step)
            x = torch.randn(8, 3, 192, 192, device="cuda", generator=generator)
            y = torch.randint(0, 10, (8,), device="cuda", generator=generator)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        result = {"losses": torch.stack(losses)}
        result.update({name: value.detach() for name, value in model.state_dict().items()})
        return harness.bits_of(result)


@pytest.mark.parametrize("part", [2, 3])
def test_training_under_a_part_of_its_memory(part: int) -> None:
    """Bits as in memory; allocated and reserved bytes both keep to the limit."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    expected = _train(4)
    if _train(4) != expected:
        pytest.skip("the plain run does not repeat itself to the bit here")
    part_of_peak = (torch.cuda.max_memory_allocated() - before) // part
    limit = part_of_peak + harness.held("cuda")
    torch.cuda.set_per_process_memory_fraction(
        (limit + 0.5) / torch.cuda.get_device_properties(0).total_memory
    )
    with harness.managed("cuda", limit=part_of_peak, min_block="1MiB") as package:
        harness.check_same(expected, _train(4), f"under 1/{part} of the memory")
        stats = package.memory_stats("cuda")
    assert stats["evictions"] > 0 and stats["page_ins"] > 0
    assert stats["device.bytes.peak"] <= limit
    assert stats["device.reserved.peak"] <= limit
    in_parts = stats["list_splits"] + stats["deferred.in_lists"]
    assert in_parts > 0, "the optimizer's lists are a large part of the limit"


def test_a_fraction_is_a_bound_too() -> None:
    """In a process of its own, in which nothing else is held."""
    program = Path(__file__).with_name("fractions_on_model.py")
    subprocess.run([sys.executable, str(program)], check=True, timeout=120)


def test_peaks_of_two_allocators_are_not_added() -> None:
    """What lies in LMS's arena, and later in PyTorch's own memory, was never there at once."""
    before = harness.held("cuda")
    with harness.managed("cuda", limit=256 * MIB, min_block="1MiB") as package:
        first = torch.zeros(160 * MIB, dtype=torch.uint8, device="cuda")
        del first
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            second = torch.zeros(160 * MIB, dtype=torch.uint8, device="cuda")
        side.synchronize()
        stats = package.memory_stats("cuda")
        assert 160 * MIB <= stats["device.bytes.peak"] <= before + 256 * MIB
        assert 160 * MIB <= stats["device.reserved.peak"] <= before + 256 * MIB
        assert torch.cuda.max_memory_reserved() == stats["device.reserved.peak"]
        del second


def test_limit_below_the_largest_operator() -> None:
    """The operator, its bytes and the smallest limit are named; a larger limit goes on."""
    before = harness.held("cuda")
    with harness.managed("cuda", limit=168 * MIB, min_block="1MiB", slices=False) as package:
        a = block(4096, 4096, device="cuda")
        b = block(4096, 4096, device="cuda", value=3)
        with pytest.raises(OUT_OF_MEMORY) as caught:
            torch.mul(a, b)  # three blocks of 64 MiB
        text = str(caught.value)
        assert "aten::mul" in text, text
        smallest = harness.smallest_workable_limit(caught.value)
        assert 160 * MIB <= smallest <= before + 256 * MIB, text
        assert package.memory_stats("cuda")["pinned.bytes.current"] == 0
        package.enable(limit=smallest, min_block="1MiB", device="cuda")
        product = torch.mul(a, b)
        assert same(a, reference(4096, 4096)) and same(b, reference(4096, 4096, value=3))
        assert same(product, reference(4096, 4096) * reference(4096, 4096, value=3))


def test_host_budget_exhausted() -> None:
    """An error that says so, before any byte is lost; a larger budget goes on."""
    shape = (2048, 2048)  # 16 MiB
    settings = {"limit": 128 * MIB, "min_block": "1MiB"}
    with harness.managed("cuda", host_limit=64 * MIB, **settings) as package:
        kept: list[torch.Tensor] = []
        with pytest.raises(OUT_OF_MEMORY) as caught:
            for index in range(40):
                kept.append(block(*shape, device="cuda", value=index))
        assert "host" in str(caught.value).lower(), str(caught.value)
        assert 4 <= len(kept) < 24
        package.enable(
            limit=settings["limit"] + harness.held("cuda"),
            min_block="1MiB",
            host_limit=1024 * MIB,
            device="cuda",
        )
        while len(kept) < 40:
            kept.append(block(*shape, device="cuda", value=len(kept)))
        assert sum(state(x) == "absent" for x in kept) >= 15
        for index, x in enumerate(kept):
            assert same(x, reference(*shape, value=index)), f"block {index}"


def test_disable_returns_everything() -> None:
    """With most blocks on the host: all come back, and pinned memory is given back."""
    with harness.managed("cuda", limit=128 * MIB, min_block="1MiB"):
        kept = [block(2048, 2048, device="cuda", value=index) for index in range(40)]
        assert sum(state(x) == "absent" for x in kept) >= 15
    for index, x in enumerate(kept):
        assert state(x) == "unmanaged"
        assert same(x, reference(2048, 2048, value=index))
