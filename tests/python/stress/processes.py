"""Programs with several threads or processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, multiprocessing
from torch.utils.data import DataLoader, Dataset, TensorDataset

from .networks import ResNet18, mlp
from .registry import Result, data, gradients, labels, program, seed, summary, train


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs ``work(0)``, ``work(1)``... at once, and raises what one of them has raised."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


@program()
def several_threads(device: str) -> Result:
    """Three threads, each with a model of its own; forward, backward and optimizer overlap."""
    seed()
    models = [mlp().to(device) for _ in range(3)]
    results: list[Result] = [{} for _ in models]

    def work(index: int) -> None:
        model = models[index]
        optimizer = torch.optim.AdamW(model.parameters())
        x = data(32, 64, device=device, value=index)
        losses = train(model, optimizer, lambda _: (model(x) - x).square().mean(), steps=6)
        results[index] = summary(model, optimizer, losses=losses)

    in_threads(len(models), work)
    return {"results": results}


@program()
def threads_share_weights(device: str) -> Result:
    """Three threads read one model at once (a server): pins of one block overlap."""
    seed()
    model = ResNet18(width=8).to(device).eval()
    inputs = [data(2, 3, 64, 64, device=device, value=i) for i in range(3)]
    outputs: list[list[Tensor]] = [[] for _ in inputs]

    def work(index: int) -> None:
        with torch.no_grad():
            for _ in range(3):
                outputs[index].append(model(inputs[index]))

    in_threads(len(inputs), work)
    return {"outputs": outputs}


@program()
def backward_on_another_thread(device: str) -> Result:
    """Forward on one thread, backward on another."""
    seed()
    model = mlp().to(device)
    loss = model(data(32, 64, device=device)).square().mean()
    in_threads(1, lambda _: loss.backward())
    return {"loss": loss, "grads": gradients(model)}


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Samples cut from tensors of the parent, computed on in the worker."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] * 2 + self.x.mean(), self.y[index]


@program(tight=False)
def data_loader_fork_workers(device: str) -> Result:
    """Forked workers read the parent's tensors, which are managed where they are CPU tensors."""
    seed()
    x = data(64, 64, device="cpu") * 2
    y = labels(64, 10, "cpu") + 0
    model = mlp(64, 64, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pin = device.startswith("cuda")
    losses = []
    for workers in (0, 2):
        loader = DataLoader(
            Rows(x, y) if workers else TensorDataset(x, y),
            batch_size=16,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
            pin_memory=pin,
            generator=torch.Generator().manual_seed(3),
        )
        for bx, by in loader:
            bx, by = bx.to(device, non_blocking=True), by.to(device, non_blocking=True)
            losses += train(
                model,
                optimizer,
                lambda _, bx=bx, by=by: torch.nn.functional.cross_entropy(model(bx), by),
                steps=1,
            )
    return summary(model, optimizer, losses=losses, x=x)


def _child_adds(tensor: Tensor) -> None:
    tensor += 1


@program(devices=["cpu"], tight=False)
def share_memory(device: str) -> Result:
    """Shared memory is another process's too: a child's writes show, before and after moves."""
    seed()
    x = data(64, 64, device=device) * 2
    before = x @ x
    x.share_memory_()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_child_adds, args=(x,))
    child.start()
    child.join()
    assert child.exitcode == 0
    after = x @ x
    x.mul_(2)
    return {"x": x, "before": before, "after": after, "is_shared": x.is_shared()}


@program(devices=["cpu"], tight=False)
def forked_child_reads(device: str) -> Result:
    """A forked child sees the parent's bytes; what it writes stays its own."""
    seed()
    x = data(64, 64, device=device) * 2
    y = x @ x
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # No threads survive a fork: single-threaded numpy does the child's arithmetic.
            os.write(write, y.numpy().tobytes()[:4096])
            x.numpy()[:] = -1.0
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    blob = b""
    while part := os.read(read, 65536):
        blob += part
    os.close(read)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    return {"x": x, "y": y, "child": blob.hex(), "again": x @ y}
