"""Loops with a GPU's default settings on the model of CUDA: which of their steps follow a plan.

``test_plan_ordinary_loops.py`` runs it, with the model preloaded and costless:
loops_on_model.py perceptron|micro_batches
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_lms

STEPS, LAST, WIDTH = 44, 20, 768


def perceptron() -> Iterator[None]:
    """Adam's temporaries go where lists wait: what is left would nearly fit."""
    torch_lms.enable(device="cuda", limit="148MiB", host_limit="1GiB", plan="now", plan_seconds=0.1)
    width = [512, 2048, 512, 2048, 512, 2048, 512]
    layers = [nn.Linear(*pair) for pair in zip(width, width[1:], strict=False)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        batch = torch.empty(128, 512).cuda()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


class Layer(nn.Module):
    """Of an encoder, from operators that the model knows."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = [part(x).unflatten(-1, (4, -1)).transpose(1, 2) for part in self.parts[:3]]
        weights = torch.softmax(heads[0] @ heads[1].transpose(-1, -2), -1)
        x = self.norms[0](x + self.parts[3]((weights @ heads[2]).transpose(1, 2).flatten(-2)))
        return self.norms[1](x + self.narrow(functional.gelu(self.wide(x))))


def micro_batches() -> Iterator[None]:
    """Of other lengths each time, and updates of which a plan chooses those that wait."""
    torch_lms.enable(device="cuda", limit="262MiB", host_limit="1GiB", plan="now", plan_seconds=0.1)
    dice = random.Random(0)
    words, head = nn.Embedding(512, WIDTH), nn.Linear(WIDTH, 512)
    model = nn.Sequential(words, Layer(), Layer(), Layer(), head).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(STEPS):
        for _ in range(4):
            batch = torch.zeros(2, dice.randint(40, 64), dtype=torch.long, device="cuda")
            loss = functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
            (loss / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield


def main() -> None:
    planned, before = [], 0
    for _ in {"perceptron": perceptron, "micro_batches": micro_batches}[sys.argv[1]]():
        now = torch_lms.memory_stats()["plan.steps"]
        planned.append(now > before)
        before = now
    print("".join(".P"[one] for one in planned))
    print(torch_lms.memory_stats()["deferred.parts"], "parts have waited for long")
    print(f"{sum(planned[-LAST:])} of {LAST} planned")


if __name__ == "__main__":
    main()
