"""Layers left out at random, on the model of CUDA: whether plans with addresses serve.

``test_plan_detours.py`` runs it, with the model preloaded and costless.
"""

from __future__ import annotations

import random

import torch
from torch import nn

import torch_lms

WIDTH, LAYERS, STEPS = 1024, 8, 60


def main() -> None:
    torch_lms.enable(
        device="cuda", limit="150MiB", host_limit="1GiB", plan_cache="off", plan_seconds=0.2
    )
    dice = random.Random(1)
    with torch.device("cuda"):
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    planned, before = [], 0
    for _ in range(STEPS):
        x = torch.empty(2048, WIDTH, device="cuda")
        for layer in layers:
            if dice.random() > 0.1:
                x = layer(x)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_lms.wait_for_plan()
        stats = torch_lms.memory_stats()
        planned.append(stats["plan.steps"] > before)
        before = stats["plan.steps"]
    print("".join(".P"[one] for one in planned))
    print({key: value for key, value in stats.items() if "place" in key or key.startswith("plan.")})
    print(f"{sum(planned[-30:])} of 30 planned")


if __name__ == "__main__":
    main()
