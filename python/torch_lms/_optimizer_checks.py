"""What must not happen while an optimizer steps in the backward pass: settings that change between
it and ``step()``, state that weights share, other processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Group = dict[str, Any]


def settings_of(group: Group) -> Group:
    """A group's settings, to compare with `same`; tensors with their versions."""
    return {
        name: (value, value._version if isinstance(value, Tensor) else None)
        for name, value in group.items()
        if name != "params"
    }


def same(before: tuple[Any, int | None], now: tuple[Any, int | None]) -> bool:
    """Whether a setting has stayed what it was: of a tensor, the very same with the same bits."""
    if before[0] is now[0]:
        return before[1] == now[1]
    if isinstance(before[0], Tensor) or isinstance(now[0], Tensor):
        return False
    return bool(before[0] == now[0])


def refuse_several_processes() -> None:
    """Raises RuntimeError if gradients are to be averaged with those of other processes."""
    distributed = torch.distributed
    if (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    ):
        raise RuntimeError(
            "step_in_backward: several processes train together (torch.distributed). Wrappers "
            "such as DistributedDataParallel and FSDP average gradients across them after they "
            "are final here: weights would be updated with the gradients of one process. Use the "
            "plain optimizer"
        )


def refuse_shared_state(
    optimizer: Optimizer, copy: Optimizer, alone: Group, attributes: Group, settings: Group
) -> None:
    """For optimizers that are not known: what one weight's update leaves behind must be in
    `state`."""
    for name, value in copy.__dict__.items():
        if name not in attributes or attributes[name] is not value:
            raise shares_state(optimizer, f"its attribute {name!r}")
    for name, value in alone.items():
        if name not in settings or settings[name] is not value:
            raise shares_state(optimizer, f"the entry {name!r} of a parameter group")


def shares_state(optimizer: Optimizer, where: str) -> RuntimeError:
    """The error for what the update of one weight leaves to others."""
    return RuntimeError(
        f"step_in_backward: a step of {type(optimizer).__name__} leaves something in {where}, "
        "which all weights share; such an optimizer cannot be run for one weight at a time"
    )
