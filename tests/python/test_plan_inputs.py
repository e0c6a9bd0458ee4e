"""What a step only reads may be another block each time: loops over batches, however they are kept,
are planned by the tenth step and give the bits of a plain run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_lms

pytestmark = pytest.mark.pinned

WIDTH = 64
ROWS = 256
STEPS = 24
PLANNED_BY = 10

Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(6))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(6))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + self.drop(down(functional.gelu(up(x))))
        return x


def _batches(count: int) -> list[Batch]:
    return [(torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)) for _ in range(count)]


def _kept(count: int) -> Callable[[], Iterator[Batch]]:
    def batches() -> Iterator[Batch]:
        kept = _batches(count)
        for step in range(STEPS):
            yield kept[step % count]

    return batches


def _shuffled() -> Iterator[Batch]:
    kept = _batches(8)
    dice = random.Random(3)
    for step in range(STEPS):
        if step % 8 == 0:
            dice.shuffle(kept)
        yield kept[step % 8]


def _drawn() -> Iterator[Batch]:
    """With replacement: the same one may come twice in a row."""
    kept = _batches(4)
    dice = random.Random(5)
    for _ in range(STEPS):
        yield dice.choice(kept)


def _each_served_twice() -> Iterator[Batch]:
    kept = _batches(6)
    for step in range(STEPS):
        yield kept[step // 2 % 6]


def _ring() -> Iterator[Batch]:
    """Slots that are filled in turn."""
    ring = _batches(3)
    for step in range(STEPS):
        for slot in ring[step % 3]:
            slot.copy_(torch.randn(ROWS, WIDTH))
        yield ring[step % 3]


def _views() -> Iterator[Batch]:
    everything = torch.randn(8 * ROWS, WIDTH)
    targets = torch.randn(8 * ROWS, WIDTH)
    for step in range(STEPS):
        rows = slice(step % 8 * ROWS, (step % 8 + 1) * ROWS)
        yield everything[rows], targets[rows]


def _fresh() -> Iterator[Batch]:
    for _ in range(STEPS):
        yield torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def _from_outside() -> Iterator[Batch]:
    """Memory that no operator has made."""
    for step in range(STEPS):
        raw = torch.arange(step, step + ROWS * WIDTH, dtype=torch.float32).numpy().copy()
        yield torch.from_numpy(raw).view(ROWS, WIDTH) / 1e4, torch.from_numpy(raw).view(ROWS, WIDTH)


def _mixed() -> Iterator[Batch]:
    """Kept inputs, fresh targets, and a mask of one tensor."""
    kept = _batches(5)
    mask = (torch.randn(8 * ROWS, WIDTH) > 0).float()
    for step in range(STEPS):
        x = kept[step % 5][0]
        yield x * mask[step % 8 * ROWS : (step % 8 + 1) * ROWS], torch.randn(ROWS, WIDTH)


def _one_as_both() -> Iterator[Batch]:
    """A list whose tensors serve as input and, at another time, as target."""
    kept = [torch.randn(ROWS, WIDTH) for _ in range(5)]
    for step in range(STEPS):
        yield kept[step % 5], kept[(step + 2) % 5]


LOOPS: dict[str, Callable[[], Iterator[Batch]]] = {
    **{f"kept_{count}": _kept(count) for count in (2, 3, 4, 8, 16)},
    "shuffled": _shuffled,
    "drawn": _drawn,
    "each_served_twice": _each_served_twice,
    "ring": _ring,
    "views": _views,
    "fresh": _fresh,
    "from_outside": _from_outside,
    "mixed": _mixed,
    "one_as_both": _one_as_both,
}


def _train(batches: Callable[[], Iterator[Batch]], each: Callable[[int], None]) -> list[float]:
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for step, (x, target) in enumerate(batches()):
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        each(step)
    return losses + [float(weight.double().sum()) for weight in net.parameters()]


@pytest.mark.parametrize("min_block", [4096, 100_000], ids=["all", "not_the_batches"])
@pytest.mark.parametrize("name", LOOPS)
def test_planned_by_the_tenth_step(name: str, min_block: int) -> None:
    plain = _train(LOOPS[name], lambda step: None)
    followed: list[int] = []
    limit = 1_600_000 if min_block == 4096 else 1_000_000
    with torch_lms.managed(
        device="cpu", limit=limit, min_block=min_block, plan="now", plan_seconds=0.05
    ):
        planned = _train(
            LOOPS[name],
            lambda step: followed.append(torch_lms.memory_stats("cpu")["plan.steps"]),
        )
        stats = torch_lms.memory_stats("cpu")
    assert planned == plain
    assert stats["evictions"] > 0
    assert followed[PLANNED_BY] > 0, (followed, dict(stats))
    # And from then on every step.
    assert followed[-1] - followed[PLANNED_BY] >= STEPS - 1 - PLANNED_BY - 1, followed
