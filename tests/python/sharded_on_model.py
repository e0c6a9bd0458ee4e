"""FSDP2 on the model of CUDA, of two ranks that exchange nothing: whether its steps are planned.

``test_traps_sharded.py`` runs it, with the model preloaded and costless.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import torch_lms

WIDTH, LAYERS, STEPS = 1024, 8, 16


def main() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    torch_lms.enable(
        device="cuda", limit="160MiB", host_limit="1GiB", plan_cache="off", plan_seconds=0.2
    )
    with torch.device("cuda"):
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    for part in (*layers, model):
        fully_shard(part, mesh=dist.init_device_mesh("cuda", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(STEPS):
        x = torch.empty(2 * WIDTH, WIDTH, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_lms.wait_for_plan()
    stats = torch_lms.memory_stats()
    print(torch_lms.explain())
    print(f"{stats['plan.steps']} planned, {stats['plan.divergences']} others")
    print(f"{stats['evictions']} evictions, {stats['kept.bytes.current']} bytes kept")


if __name__ == "__main__":
    main()
