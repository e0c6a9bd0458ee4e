"""A training step that the tests of torch_lms.bench build in their child processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn


def build(size: int) -> Callable[[], torch.Tensor]:
    """Two layers and a batch of `size`; a size of 666 breaks, 667 crashes, 668 hangs,
    669 does so, too, when it has said who it is."""
    if size == 666:
        raise RuntimeError("a number that cannot be")
    if size == 667:
        os._exit(9)
    if size == 668:
        time.sleep(60)
    if size == 669:
        Path(os.environ["BENCH_PID_FILE"]).write_text(str(os.getpid()))
        time.sleep(60)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, target = torch.randn(size, 256), torch.randint(8, (size,))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    import torch_lms

    folder = Path(sys.argv[1])
    os.environ["BENCH_PID_FILE"] = str(folder / "pid")
    torch_lms.bench(build, [669], methods=["plain"], device="cpu", out=folder)
