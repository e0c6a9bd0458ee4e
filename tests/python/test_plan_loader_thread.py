"""Another thread makes the batches: it comes between the operators of a step wherever it likes."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import torch_lms

pytestmark = pytest.mark.pinned

STEPS, LAST = 40, 15


class Loader:
    """Draws and augments in a thread of its own, which waits here and there for the step's."""

    def __init__(self) -> None:
        self.batches: queue.Queue[Tensor] = queue.Queue(2)
        self.go_on = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        when = random.Random(5)
        draw = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            batch = torch.randn(1024, 256, generator=draw)
            for _ in range(when.randrange(6)):
                self.go_on.acquire(timeout=when.random() * 0.004)
                batch = batch * 0.5
            self.batches.put(batch)


def train() -> Iterator[Tensor]:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = Loader()
    for _ in range(STEPS):
        loss = model(loader.batches.get()).square().mean()
        loader.go_on.release()
        loss.backward()
        loader.go_on.release()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
    loader.thread.join()


def test_a_loader_thread_keeps_no_step_from_being_planned() -> None:
    plain = [loss.item() for loss in train()]
    torch_lms.enable(device="cpu", limit=10 << 20, min_block=65536, plan="now")
    planned = []
    losses = []
    for loss in train():
        losses.append(loss.item())
        planned.append(torch_lms.memory_stats("cpu")["plan.steps"])
    assert losses == plain
    assert planned[-1] - planned[-1 - LAST] >= LAST - 3
