"""What a training step is made of, and what may be varied about it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class StepOptions:
    """What may be varied about a step, beside its size."""

    tiny: bool = False
    optimizer: str = "default"
    attention: str | None = None
    deterministic: bool = True
    clip: bool = False


@dataclass(frozen=True)
class Loop:
    """How the iterations of a step differ from each other.

    What iteration i does follows from i alone. Runs are compared over the same iterations, so every
    method runs as many: `warmup`, then `steps`, whose mean time counts.
    """

    # Prepares the step for the iteration of this number, counted from 0.
    vary: Callable[[TrainStep, int], None]
    # Iterations in a row that are sure to have every kind among them.
    cycle: int
    warmup: int
    steps: int


@dataclass
class TrainStep:
    """A model with everything that one training iteration needs. Call it to run one iteration."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    target: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    autocast: torch.dtype | None = None
    # Entered around each forward pass; `save_on_cpu` and its like.
    around_forward: Callable[[], AbstractContextManager[object]] = field(default=nullcontext)
    # The norm at which gradients are clipped.
    clip: float | None = None
    loop: Loop | None = None
    iteration: int = 0

    def __call__(self) -> Tensor:
        """Run one iteration; returns the loss (detached, still on the device)."""
        if self.loop is not None:
            self.loop.vary(self, self.iteration)
        self.iteration += 1
        self.optimizer.zero_grad(set_to_none=True)
        with (
            self.around_forward(),
            torch.autocast(
                self.inputs.device.type, dtype=self.autocast, enabled=self.autocast is not None
            ),
        ):
            loss = self.forward()
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.detach()

    def forward(self) -> Tensor:
        """The loss of the model's inputs."""
        return self.loss(self.model(self.inputs), self.target)

    def set_checkpointing(self, on: bool) -> None:
        """Whether the model's blocks are recomputed in the backward pass."""
        self.model.checkpointing = on


def kind(options: StepOptions, default: str) -> dict[str, bool]:
    """Which of PyTorch's implementations of an optimizer: arguments of its constructor."""
    name = default if options.optimizer == "default" else options.optimizer
    return {
        "fused": {"fused": True},
        "foreach": {"foreach": True},
        "forloop": {"foreach": False, "fused": False},
    }[name]
