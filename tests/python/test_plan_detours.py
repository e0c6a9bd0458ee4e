"""Steps that leave something out, or do more, follow plans with the bits of a plain run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from on_model import run_on_model
from test_plan_sizes import Experts, Layer, Model, run
from torch import Tensor, nn

import torch_lms

LENGTH = 256


class RandomDepth(nn.Module):
    """Leaves each layer out with a chance."""

    def __init__(self, layers: int, left_out: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.dice, self.left_out = random.Random(5), left_out

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.dice.random() >= self.left_out:
                x = layer(x)
        return x


class SomeExperts(Experts):
    """Experts that get no token do nothing."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weight, chosen = (self.gate(tokens) * 8).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            mine = (chosen == i).nonzero().squeeze(1)
            if len(mine):
                out = out.index_add(0, mine, expert(tokens[mine]) * weight[mine, None])
        return x + out.view_as(x)


def train(model: Model, steps: int, micro_steps: Callable[[], int] = lambda: 1) -> Iterator[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        for _ in range(micro_steps()):
            loss = model(torch.randint(256, (4, LENGTH)))
            loss.backward()
        if step % 7 == 3:  # what is logged now and then
            sum(parameter.grad.square().sum() for parameter in model.head.parameters()).sqrt()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def random_depth(steps: int) -> Iterator[Tensor]:
    return train(Model([RandomDepth(8, 0.15)]), steps)


def some_experts(steps: int) -> Iterator[Tensor]:
    return train(Model([Layer() if i % 2 else SomeExperts() for i in range(6)]), steps)


def micro_steps(steps: int) -> Iterator[Tensor]:
    dice = random.Random(2)
    return train(Model([Layer() for _ in range(4)]), steps, lambda: dice.randrange(1, 4))


LOOPS = [(random_depth, 12), (some_experts, 9), (micro_steps, 9)]


@pytest.mark.parametrize(("loop", "limit"), LOOPS)
def test_follow_plans(loop: Callable[[int], Iterator[Tensor]], limit: int) -> None:
    """Nearly all of the last thirty steps."""
    expected, _ = run(loop, 60)
    torch_lms.enable(device="cpu", limit=limit << 20, min_block=8192, plan="now", plan_seconds=0.05)
    try:
        losses, planned = run(loop, 60)
        stats, text = torch_lms.memory_stats("cpu"), torch_lms.explain("cpu")
    finally:
        torch_lms.disable()
    assert losses == expected
    assert sum(planned[-30:]) >= 27, ("".join(".P"[one] for one in planned), text)
    assert stats["plan.detours"] > 0


def test_addresses_of_a_plan_serve_steps_that_leave_layers_out() -> None:
    """On the model of CUDA, where plans say where everything lies."""
    text = run_on_model("detours_on_model.py")
    assert int(text.splitlines()[-1].split()[0]) >= 27, text
