"""The list of programs: and helpers that all of them share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

Result = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """One deterministic piece of PyTorch.

    ``run(device)`` returns everything that matters: tensors, numbers, and lists, tuples and dicts
    of them. It seeds every generator that it uses, so that two runs agree wherever PyTorch does.
    """

    name: str
    run: Callable[[str], Result]
    devices: tuple[str, ...] = ("cpu", "cuda")
    slow: bool = False
    # False where a run has nothing that may leave (all of it is of a kind that stays resident).
    evicts: bool = True
    # False where nothing that may leave can be computed again.
    drops: bool = True
    # True where PyTorch reads memory that no operator has asked for. On the CPU that ends the
    # process if the memory has been dropped.
    reads_unheard: bool = False
    # False where a limit of half the peak makes no sense (a child process, a captured graph).
    tight: bool = True


PROGRAMS: dict[str, Program] = {}


def program(
    name: str | None = None,
    *,
    devices: Iterable[str] = ("cpu", "cuda"),
    slow: bool = False,
    evicts: bool = True,
    drops: bool = True,
    reads_unheard: bool = False,
    tight: bool = True,
) -> Callable[[Callable[[str], Result]], Callable[[str], Result]]:
    """Enter a function into ``PROGRAMS``."""

    def register(run: Callable[[str], Result]) -> Callable[[str], Result]:
        key = name or run.__name__
        if key in PROGRAMS:
            raise ValueError(f"program {key} is defined twice")
        PROGRAMS[key] = Program(
            key,
            run,
            tuple(devices),
            slow,
            evicts,
            evicts and drops,
            reads_unheard,
            tight,
        )
        return run

    return register


def seed(value: int = 1234) -> None:
    """Seed Python's generator and all of PyTorch's."""
    random.seed(value)
    torch.manual_seed(value)


def generator(value: int = 99) -> torch.Generator:
    """A CPU generator: data drawn from it is the same on every device."""
    return torch.Generator().manual_seed(value)


def data(
    *shape: int, device: str, value: int = 99, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Normal noise that does not depend on the device."""
    return torch.randn(*shape, generator=generator(value), device="cpu").to(dtype).to(device)


def labels(count: int, classes: int, device: str, value: int = 98) -> torch.Tensor:
    """Class labels that do not depend on the device."""
    return torch.randint(0, classes, (count,), generator=generator(value), device="cpu").to(device)


def gradients(model: torch.nn.Module) -> Result:
    """Every gradient by name."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def optimizer_state(optimizer: torch.optim.Optimizer) -> list[Result]:
    """The optimizer's tensors and numbers, in the order of its parameters."""
    return [
        dict(sorted(optimizer.state[p].items()))
        for group in optimizer.param_groups
        for p in group["params"]
    ]


def summary(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    **extra: Any,
) -> Result:
    """Gradients, weights, buffers and optimizer state of a finished run, and ``extra``."""
    result: Result = {"grads": gradients(model), "state": dict(model.state_dict())}
    if optimizer is not None:
        result["optimizer"] = optimizer_state(optimizer)
    result.update(extra)
    return result


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[int], torch.Tensor],
    steps: int = 3,
) -> list[torch.Tensor]:
    """Plain training steps; the losses, one tensor a step."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses
