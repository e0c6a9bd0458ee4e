"""Memory that cannot move, taken in the middle of planned steps, on the model of CUDA.

As cuBLAS does for a thread that first computes something again under a plan, and as a program does
here besides. For ``test_plan_sizes.py``, with the model preloaded and costless.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import torch_lms

WIDTH, LAYERS, STEPS, PLANNED = 1024, 8, 40, 20


def main() -> None:
    torch_lms.enable(
        device="cuda",
        limit=sys.argv[1],
        host_limit="1GiB",
        plan_cache="off",
        plan_seconds=0.2,
        deferred_updates=False,
    )
    with torch.device("cuda"):
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
        x = torch.empty(1536, WIDTH)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    misplaced, before, taken = [], 0, []
    for step in range(STEPS):
        y = model[:5](x)
        if step in (PLANNED, PLANNED + 2):
            taken.append(torch.cuda.caching_allocator_alloc(1 << 20))
        model[5:](y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_lms.wait_for_plan()
        stats = torch_lms.memory_stats()
        misplaced.append(stats["arena.misplaced"] - before)
        before = stats["arena.misplaced"]
    print(f"{stats['plan.steps']} steps planned, misplaced in each: {misplaced}")
    print(f"{sum(misplaced[-8:])} misplaced in the last steps")


if __name__ == "__main__":
    main()
