"""Traps: fully sharded data parallel, which gives weights' memory back and takes it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_model import run_on_model
from stress import harness
from torch import multiprocessing, nn

WIDTH = 32
SETTINGS: dict[str, dict[str, Any]] = {
    "drops": {"stress": "drop"},
    "evictions": {"limit": "448KiB", "plan": "now", "plan_cache": "off", "recompute": True},
}


def _train() -> list[torch.Tensor]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in "1234"
    ]
    model = nn.Sequential(*layers)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(8):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        x = torch.randn(512, WIDTH, generator=generator) * 1
        loss = (model(torch.sin(x)) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.to_local().detach().clone() for p in model.parameters())]


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        expected = _train()
        for what, settings in SETTINGS.items():
            with harness.managed("cpu", min_block="16KiB", **settings) as package:
                before = package.memory_stats("cpu").get(what, 0)
                got = _train()
                after = package.memory_stats("cpu")[what]
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)), settings
            assert after > before, f"no {what}: it shows nothing"
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fully_shard(tmp_path: Path) -> None:
    """Two processes, whose gathered weights are smaller than a block."""
    multiprocessing.spawn(_worker, args=(str(tmp_path),), nprocs=2)


def test_on_cuda_steps_are_planned() -> None:
    """Buffers of a collective come and go on a stream of its own, each time as others."""
    said = run_on_model("sharded_on_model.py")
    planned, others = said.splitlines()[-2].split(", ")
    assert int(planned.split()[0]) >= 4, said
    assert others == "0 others", said
