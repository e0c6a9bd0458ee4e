"""Loops none of whose steps, or parts, is like another follow plans, with a plain run's bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from test_plan_sizes import run
from torch import Tensor, nn
from torch.nn import functional

import torch_lms

pytestmark = pytest.mark.pinned

WIDTH, WORDS = 64, 256


class Block(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(functional.gelu(self.wide(self.norm(x))))


class Model(nn.Module):
    """A small language model, of which layers may be left out."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, without: frozenset[int] = frozenset()) -> Tensor:
        x = self.words(words)
        for i, layer in enumerate(self.layers):
            if i not in without:
                x = layer(x)
        return self.head(x)


class Training:
    """A model, its optimizer, and what a step does."""

    def __init__(self, layers: int, seed: int) -> None:
        self.model = Model(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.dice = random.Random(seed)

    def backward(self, without: frozenset[int] = frozenset()) -> Tensor:
        words = torch.randint(WORDS, (4, 64))
        loss = functional.cross_entropy(self.model(words, without).view(-1, WORDS), words.view(-1))
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def random_depth(steps: int) -> Iterator[Tensor]:
    training = Training(12, 3)
    for _ in range(steps):
        left_out = frozenset(i for i in range(12) if training.dice.random() < 0.15)
        loss = training.backward(left_out)
        training.update()
        yield loss


def micro_batches(steps: int, *, least: int, clip: bool) -> Iterator[Tensor]:
    """Up to four of them. Each looks like a step, and the first unlike the others."""
    training = Training(6, 4)
    for _ in range(steps):
        loss = torch.zeros(())
        for _ in range(training.dice.randint(least, 4)):
            loss += training.backward()
        if clip:
            nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.update()
        yield loss


def evaluates(steps: int) -> Iterator[Tensor]:
    """Every twelfth step is followed by something that changes nothing."""
    training = Training(6, 6)
    for step in range(steps):
        loss = training.backward()
        training.update()
        if step % 12 == 11:
            with torch.no_grad():
                for _ in range(5):
                    training.model(torch.randint(WORDS, (4, 64)))
        yield loss


def samples(steps: int) -> Iterator[Tensor]:
    """Some words are drawn from the model before each step."""
    training = Training(6, 5)
    for _ in range(steps):
        with torch.no_grad():
            words = torch.randint(WORDS, (8, 4))
            for _ in range(training.dice.randint(4, 20)):
                best = training.model(words)[:, -1].argmax(-1, keepdim=True)
                words = torch.cat([words, best], 1)
        loss = training.backward()
        training.update()
        yield loss


def line_search(steps: int) -> Iterator[Tensor]:
    layers = [nn.Linear(128, 128) if i % 2 == 0 else nn.Tanh() for i in range(12)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=6, line_search_fn="strong_wolfe", history_size=4
    )
    x, y = torch.randn(512, 128), torch.randn(512, 128)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        yield optimizer.step(closure).detach()


# And how many of the last twenty steps follow a plan, at least.
LOOPS = [
    pytest.param(random_depth, 18, id="random_depth"),
    pytest.param(partial(micro_batches, least=1, clip=False), 18, id="micro_batches"),
    pytest.param(partial(micro_batches, least=4, clip=True), 18, id="four_micro_batches"),
    pytest.param(evaluates, 18, id="evaluates"),
    pytest.param(samples, 18, id="samples"),
    pytest.param(line_search, 15, id="line_search"),
]


@pytest.mark.parametrize(("loop", "least"), LOOPS)
def test_follow_plans(loop: Callable[[int], Iterator[Tensor]], least: int) -> None:
    steps = 60
    expected, _ = run(loop, steps)
    limits = {"device": "cpu", "min_block": 8192}
    with torch_lms.managed(limit="1GiB", plan="off", **limits):
        run(loop, 4)
        peak = torch_lms.memory_stats("cpu")["device.bytes.peak"]
    with torch_lms.managed(limit=peak // 2, plan="now", plan_seconds=0.1, **limits):
        losses, planned = run(loop, steps)
    assert losses == expected
    assert sum(planned[-20:]) >= least, "".join(".P"[one] for one in planned)
