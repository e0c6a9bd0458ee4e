"""Loops under plans that drop and compute again: the same bits as a plain run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from recompute_support import counts, numbers
from torch import Tensor, nn
from torch.nn import functional

import torch_lms

pytestmark = pytest.mark.pinned

STEPS = 14
Step = Callable[[int], Tensor]


def convolutions() -> tuple[nn.Module, Step]:
    """Convolutions, batch norms and activations in place, with sums around them."""
    torch.manual_seed(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(5))
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(5))
            self.last = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for conv, norm in zip(self.convs, self.norms, strict=True):
                y = norm(conv(x))
                y += x
                x = functional.relu(y, inplace=True)
            return self.last(x.mean((2, 3)))

    net = Net()
    return net, lambda i: net(_batch(i, 8, 3, 48, 48)).square().mean()


def transformer() -> tuple[nn.Module, Step]:
    """Attention without dropout, layer norms and gelu: sums that die first, and must come back."""
    torch.manual_seed(2)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(2))
            self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Tensor) -> Tensor:
            parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(*parts)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    net = nn.Sequential(*(Block() for _ in range(3)))
    return net, lambda i: net(_batch(i, 8, 64, 64)).square().mean()


def _batch(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _train(
    make: Callable[[], tuple[nn.Module, Step]],
    around: Callable[[int, nn.Module], Any] | None = None,
) -> Iterator[Any]:
    net, step = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for i in range(STEPS):
        loss = step(i)
        if around is not None:
            around(i, net)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach().clone()
    yield {name: value.clone() for name, value in net.state_dict().items()}


def _same(one: list[Any], other: list[Any]) -> bool:
    losses = all(torch.equal(a, b) for a, b in zip(one[:-1], other[:-1], strict=True))
    return losses and all(torch.equal(one[-1][name], other[-1][name]) for name in one[-1])


def _peak(make: Callable[[], tuple[nn.Module, Step]]) -> int:
    with torch_lms.managed(device="cpu", limit="1GiB", min_block=4096):
        list(_train(make))
        return int(torch_lms.memory_stats("cpu")["device.bytes.peak"])


def _managed(limit: int, **settings: Any) -> Any:
    return torch_lms.managed(
        device="cpu", limit=limit, min_block=4096, plan="now", plan_seconds=0.2, **settings
    )


@pytest.mark.parametrize("make", [convolutions, transformer])
@pytest.mark.parametrize("part", [0.75, 0.5])
def test_same_bits_under_plans_that_drop(
    make: Callable[[], tuple[nn.Module, Step]], part: float
) -> None:
    plain = list(_train(make))
    limit = int(_peak(make) * part)
    with _managed(limit, recompute=True):
        before = counts()
        planned = list(_train(make))
        stats = counts(before)
    assert _same(plain, planned)
    assert stats["plan.steps"] > 0, stats


def test_steps_that_turn_out_to_be_others_while_much_is_dropped() -> None:
    plain = list(_train(convolutions))
    limit = _peak(convolutions) // 2

    def around(i: int, net: nn.Module) -> None:
        if i in (9, 12):
            functional.relu(torch.ones(3, 5000)).sum()
            for weight in net.parameters():
                weight.data.mul_(1)  # what lineages read is written, with the same bits
        if i == 11:
            with pytest.raises(RuntimeError):
                net(torch.ones(2, 2))

    with _managed(limit, recompute=True):
        before = counts()
        planned = list(_train(convolutions, around))
        stats = counts(before)
    assert stats["plan.steps"] > 0, stats
    assert _same(plain, planned)


def test_told_not_to_nothing_is_computed_again() -> None:
    plain = list(_train(transformer))
    limit = _peak(transformer) // 2
    with _managed(limit, recompute=False):
        before = counts()
        planned = list(_train(transformer))
        stats = counts(before)
    assert _same(plain, planned)
    assert stats["plan.steps"] > 0 and stats["evictions"] > 0
    assert stats["drops"] == 0 and stats["remakes"] == 0


def test_what_finds_no_room_below_is_computed_again() -> None:
    """Also before there is a plan: everything would have to be copied then."""
    plain = list(_train(transformer))
    peak = _peak(transformer)
    tight = {"limit": peak // 2, "host_limit": peak * 9 // 20}
    with _managed(**tight, recompute=False), pytest.raises(RuntimeError, match="file store"):
        list(_train(transformer))
    with _managed(**tight, recompute=True):
        before = counts()
        tried = []
        for result in _train(transformer):
            tried.append(result)
            if len(tried) == 2:
                stats = counts(before)
                assert stats["plan.steps"] == 0 and stats["drops"] > 0, stats
    assert _same(plain, tried)


def test_what_finds_no_room_below_is_not_dropped_in_long_chains() -> None:
    """Each is computed from the one before; were they dropped one after the other, the last would
    take all of them at once."""
    count = 1 << 18  # what other tests have left is small beside it
    block = 4 * count

    def chain() -> Tensor:
        made = [numbers(1, count)]
        for i in range(21):
            made.append(made[-1] * (1 + 1 / (i + 2)))
        total = torch.zeros(count)
        while made:
            total = total * 2 + made.pop()
        return total

    expected = chain().clone()
    with torch_lms.managed(
        device="cpu", limit=8 * block, host_limit=9 * block, min_block=block, recompute=True
    ):
        before = counts()
        result = chain()
        dropped = counts(before)["drops"]
        assert torch.equal(expected, result)
    assert dropped > 0
