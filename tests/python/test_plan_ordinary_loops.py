"""Loops as people write them that once went without a plan: planned, with a plain run's bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from on_model import run_on_model
from torch import Tensor, nn
from torch.nn import functional

import torch_lms

pytestmark = pytest.mark.pinned

STEPS, LAST = 60, 20
Program = Callable[[], Iterator[Tensor]]


def parameter_by_parameter() -> Iterator[Tensor]:
    """An optimizer that goes from one to the next: the loop within it is no step."""
    model = nn.Sequential(
        nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 16)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    for _ in range(STEPS):
        loss = functional.mse_loss(model(torch.randn(256, 64)), torch.randn(256, 16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def product_in_place() -> Iterator[Tensor]:
    """Results that never fit are born in the tier below."""
    body = nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3))
    )
    head = nn.Linear(64, 1000, bias=False).requires_grad_(False)
    optimizer = torch.optim.AdamW(body.parameters(), 1e-3)
    for _ in range(STEPS):
        words = torch.randint(1000, (288,))
        loss = functional.cross_entropy(head(body(torch.randn(288, 64))), words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def growing_images() -> Iterator[Tensor]:
    """At the larger size convolutions do not fit, and run in place."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 16)):
        layers += [nn.Conv2d(before, after, 3, 1, 1), nn.BatchNorm2d(after), nn.SiLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for i in range(STEPS):
        side = 36 if i < 15 else 48
        labels = torch.randint(0, 8, (8,))
        loss = functional.cross_entropy(model(torch.rand(8, 3, side, side)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


class Encoder(nn.Module):
    """Three layers and a head."""

    def __init__(self, words: int = 1000, guesses: int = 7, dropout: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 96)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(96, 4, 384, dropout, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(96, guesses)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def thawing() -> Iterator[Tensor]:
    """Layers are frozen at first, and the batches have any length: two kinds of step that begin
    alike."""
    model = Encoder()
    for weight in (*model.words.parameters(), *model.layers.parameters()):
        weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    dice = random.Random(0)
    for i in range(STEPS + 20):
        if i in (0, 15):
            for weight in model.layers[2 if i == 0 else 1].parameters():
                weight.requires_grad_(True)
        length = dice.randint(40, 96)
        guess = model(torch.randint(1000, (6, length))).flatten(0, 1)
        loss = functional.cross_entropy(guess, torch.randint(7, (6 * length,)))
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def micro_batches_unread() -> Iterator[Tensor]:
    """One to four of them, whose losses nobody looks at."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    dice = random.Random(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(dice.randint(1, 4)):
            loss = model(torch.randn(256, 256)).square().mean()
            loss.backward()
        optimizer.step()
        yield loss.detach()


def micro_batches_of_lengths(lengths: Callable[[], list[int]]) -> Iterator[Tensor]:
    """Read ahead, and of several lengths; whether a loss is a number is asked each time."""
    model = Encoder(words=512, guesses=512, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    total = torch.zeros(())
    for _ in range(STEPS):
        batches = [torch.randint(512, (2, length)) for length in lengths()]
        count = torch.stack([(batch >= 0).sum() for batch in batches]).sum()
        for batch in batches:
            guess = model(batch).flatten(0, 1)
            loss = functional.cross_entropy(guess, batch.flatten(), reduction="sum") / count
            loss.backward()
            assert not torch.isnan(loss.detach())
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield total.clone()


def micro_batches_of_the_same_lengths() -> Iterator[Tensor]:
    return micro_batches_of_lengths(lambda: [64, 60, 56, 64])


def micro_batches_of_any_length() -> Iterator[Tensor]:
    dice = random.Random(0)
    return micro_batches_of_lengths(lambda: [dice.randint(40, 64) for _ in range(4)])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("program", "limit", "min_block"),
    [
        (parameter_by_parameter, 4_050_000, 2048),
        (product_in_place, 1_350_000, 2048),
        (product_in_place, 1_000_000, 2048),
        (growing_images, 8_500_000, 2048),
        (growing_images, 6_200_000, 2048),
        (thawing, 7_000_000, 4096),
        (micro_batches_unread, 6 << 20, 4096),
        (micro_batches_of_the_same_lengths, 7 << 20, 4096),
        (micro_batches_of_any_length, 7 << 20, 4096),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_planned_in_the_end(program: Program, limit: int, min_block: int) -> None:
    torch.manual_seed(0)
    wanted = [loss.item() for loss in program()]
    torch.manual_seed(0)
    torch_lms.enable(
        limit=limit,
        min_block=min_block,
        device="cpu",
        plan="now",
        plan_seconds=0.1,
        plan_cache="off",
    )
    losses, planned, steps = [], [], 0  # nobody reads a loss before the end
    for loss in program():
        losses.append(loss)
        now = torch_lms.memory_stats("cpu")["plan.steps"]
        planned.append(now > steps)
        steps = now
    assert torch.stack(losses).tolist() == wanted
    assert sum(planned[-LAST:]) >= LAST - 2, "".join(".P"[one] for one in planned)
    # A loop within the step would be counted several times a step.
    assert steps <= len(planned), steps


@pytest.mark.parametrize("loop", ["perceptron", "micro_batches"])
def test_planned_with_the_settings_of_a_gpu(loop: str) -> None:
    # Whether updates are chosen to wait depends on how long things took.
    marks, waited, last = run_on_model("loops_on_model.py", loop).splitlines()[-3:]
    planned, _, of = last.split()[:3]
    assert int(planned) >= int(of) - 2, f"{marks}, {waited}"
