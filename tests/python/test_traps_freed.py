"""Traps: storages whose memory goes, or becomes other memory, while they live on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recompute_support import counts
from stress import harness
from stress.probe import same, state

SMALL, LARGE = (4, 8), (64, 96)
MIN_BLOCK = "4KiB"  # between the two


def numbers(shape: tuple[int, ...], value: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(value)) * 1


def give_back(x: torch.Tensor) -> None:
    x.untyped_storage().resize_(0)


def regrow(x: torch.Tensor) -> None:
    size = x.untyped_storage().size()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(size)
    x.fill_(7)


def grow(x: torch.Tensor) -> None:
    x.untyped_storage().resize_(1 << 16)
    x.fill_(7)


def shrink(x: torch.Tensor) -> None:
    x.untyped_storage().resize_(4)


def by_typed_storage(x: torch.Tensor) -> None:
    x.storage().resize_(0)


def by_typed_storage_inner(x: torch.Tensor) -> None:
    x._typed_storage()._resize_(0)


def by_operator(x: torch.Tensor) -> None:
    torch.ops.inductor.resize_storage_bytes_(x, 0)


def by_resize(x: torch.Tensor) -> None:
    x.detach().resize_(1 << 14).fill_(7)


def by_set(x: torch.Tensor) -> None:
    x.detach().set_()
    x.zero_()


def by_swap(x: torch.Tensor) -> None:
    y = torch.full(tuple(x.shape), 7.0)
    torch.utils.swap_tensors(x, y)
    give_back(y)


def by_data(x: torch.Tensor) -> None:
    old = x.detach()
    x.data = torch.full(tuple(x.shape), 7.0)
    give_back(old)


def by_sharing(x: torch.Tensor) -> None:
    x.share_memory_()
    x.fill_(7)


def by_storage_copy(x: torch.Tensor) -> None:
    x.untyped_storage().copy_(torch.full(tuple(x.shape), 7.0).untyped_storage())


def by_storage_fill(x: torch.Tensor) -> None:
    x.untyped_storage().fill_(7)


def by_typed_fill(x: torch.Tensor) -> None:
    x.storage().fill_(7)


def by_items(x: torch.Tensor) -> None:
    x.untyped_storage()[0] = 7
    x.storage()[1] = 7


def by_slice(x: torch.Tensor) -> None:
    x.untyped_storage()[0:8].fill_(7)


def by_byteswap(x: torch.Tensor) -> None:
    x.untyped_storage().byteswap(torch.float32)


WAYS = [
    give_back, regrow, grow, shrink, by_typed_storage, by_typed_storage_inner, by_operator,
    by_resize, by_set, by_swap, by_data, by_sharing, by_storage_copy, by_storage_fill,
    by_typed_fill, by_items, by_slice, by_byteswap,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_computed_from_it(way: Callable[..., None], shape: tuple[int, ...]) -> None:
    """What has been dropped and is computed from it again needs its bytes as they were."""

    def run() -> list[torch.Tensor]:
        x, rows = numbers(shape), torch.ones(128 if shape == SMALL else 1, 1, 1)
        y = rows * x * 2  # dropped under stress, with a lineage that reads x
        z = y.tanh()
        way(x)
        return [y + z, y]

    expected = run()
    for stress in (True, "drop"):
        with harness.managed("cpu", stress=stress, min_block=MIN_BLOCK) as package:
            assert all(same(a, b) for a, b in zip(run(), expected, strict=True)), stress
            stats = package.memory_stats("cpu")
            assert stats["drops" if stress == "drop" else "evictions"] > 0


@pytest.mark.parametrize("away", [False, True], ids=["resident", "away"])
@pytest.mark.parametrize("stress", [False, True, "drop"])
def test_the_storage_itself(stress: bool | str, away: bool) -> None:
    """A block that gives its memory back holds none, and takes new memory as any other."""
    with harness.managed("cpu", stress=stress, min_block=MIN_BLOCK) as package:
        before = package.memory_stats("cpu")["blocks.current"]
        x = numbers(LARGE).tanh()
        if away:
            torch.ops.lms.evict(x)
        size = x.untyped_storage().size()
        give_back(x)
        assert x.untyped_storage().nbytes() == 0
        assert package.memory_stats("cpu")["blocks.current"] <= before
        x.untyped_storage().resize_(size)
        y = x.fill_(3) * 2
        assert same(y, torch.full(LARGE, 6.0)) and same(x, torch.full(LARGE, 3.0))
        assert state(x) != "kept"


def test_under_a_plan() -> None:
    """A loop as sharded data parallel runs it: weights are gathered, used and given back."""

    def run() -> list[torch.Tensor]:
        shards = [numbers((96,), value) * 0.1 for value in range(6)]
        gathered = [torch.empty(96) for _ in shards]
        for weight in gathered:
            give_back(weight)
        out = []
        for step in range(14):
            x = numbers((256, 96), step).requires_grad_()
            y = x * 1
            for shard, weight in zip(shards, gathered, strict=True):
                weight.untyped_storage().resize_(4 * 96)
                weight.copy_(shard)
                y = torch.sin(y + weight) * 1.1  # the sum is kept for the backward pass
                give_back(weight)
            y.square().mean().backward()
            for shard in shards:
                shard.add_(x.grad.mean(0), alpha=-0.1)
            out.append(y.detach().sum())
        return [*out, *shards]

    expected = run()
    settings = {"plan": "now", "plan_cache": "off", "recompute": True}
    with harness.managed("cpu", limit="500KiB", min_block="16KiB", **settings):
        before = counts()
        got = run()
        since = counts(before)
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))
    assert since["plan.steps"] > 0 and since["drops"] > 0, since
