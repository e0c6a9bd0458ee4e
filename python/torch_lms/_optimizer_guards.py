"""Errors, instead of wrong results, for what needs gradients that are gone already.

While an optimizer steps in the backward pass, PyTorch's gradient clipping and ``GradScaler``, and
steps of other optimizers on the same weights, would find no gradients and silently do nothing.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import utils
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ._patches import Patches

_CLIPPING = (
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    # What the first calls, also where it was imported by name before.
    "_clip_grads_with_norm_",
)


class Updates(Protocol):
    """What updates an optimizer's weights in the backward pass."""

    active: bool
    # So many `accumulate()` are open.
    holding: int
    # Ids of the weights that have been updated since the last step().
    updated: set[int]

    def optimizer(self) -> Optimizer | None:
        """The optimizer, if it is still there."""

    def owns(self, weight: Tensor) -> bool:
        """Whether this updates ``weight`` in the backward pass."""

    def name_of(self, weight: Tensor) -> str:
        """How an error names ``weight``."""


_active: weakref.WeakSet[Updates] = weakref.WeakSet()
_patches: Patches | None = None
_step_hook: RemovableHandle | None = None


def add(updates: Updates) -> None:
    """Watches over the weights of ``updates`` until it is removed or dies."""
    _active.add(updates)
    weakref.finalize(updates, release).atexit = False
    _install()


def owner(weight: Tensor) -> Updates | None:
    """What updates ``weight`` in the backward pass, if anything does."""
    return next((each for each in list(_active) if each.owns(weight)), None)


def release() -> None:
    """Takes the guards out if nothing is left to watch over."""
    global _patches, _step_hook
    if any(each.active for each in list(_active)):
        return
    if _patches is not None:
        _patches.restore()
        _patches = None
    if _step_hook is not None:
        _step_hook.remove()
        _step_hook = None


def _install() -> None:
    global _patches, _step_hook
    if _patches is not None:
        return
    _patches = Patches()
    for module in (clip_grad, utils):
        for name in _CLIPPING:
            _patches.replace(module, name, _guard_clipping)
    _patches.replace(torch.amp.GradScaler, "scale", _guard_scale)
    _patches.replace(torch.amp.GradScaler, "unscale_", _guard_unscale)
    _patches.replace(torch.amp.GradScaler, "step", _guard_unscale)
    _step_hook = register_optimizer_step_pre_hook(_guard_step)


def _guard_clipping(original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__

    @functools.wraps(original)
    def clip(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        weights = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for weight in weights:
            updates = owner(weight)
            if updates is not None and id(weight) in updates.updated:
                raise RuntimeError(
                    f"torch.nn.utils.{name.lstrip('_')}: {updates.name_of(weight)} has been "
                    "updated in the backward pass (torch_lms.step_in_backward), before all "
                    "gradients were there, and its gradient is gone. Run the backward pass inside "
                    "`with handle.accumulate():`, which keeps gradients for optimizer.step(); or "
                    "clip each gradient by itself with weight.register_hook(lambda grad: "
                    "grad.clamp(-c, c)); or undo it with handle.remove()"
                )
        # An exhausted generator would be taken for an empty one.
        return original(weights if weights else parameters, *args, **kwargs)

    return clip


def _guard_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        if self.is_enabled() and any(each.active and not each.holding for each in list(_active)):
            for weight in _leaves(outputs):
                updates = owner(weight)
                if updates is not None and not updates.holding:
                    raise RuntimeError(
                        "GradScaler.scale: this loss would give scaled gradients to "
                        f"{updates.name_of(weight)}, which is updated in the backward pass "
                        "(torch_lms.step_in_backward), before the scaler has seen whether all "
                        "gradients are finite. Scale and run the backward pass inside `with "
                        "handle.accumulate():`, or train in bfloat16, which needs no scaler"
                    )
        return original(self, outputs)

    return scale


def _guard_unscale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def unscale(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        for each in list(_active):
            if self.is_enabled() and each.updated and each.optimizer() is optimizer:
                raise RuntimeError(
                    f"GradScaler.{original.__name__}: weights have been updated in the backward "
                    "pass (torch_lms.step_in_backward) already, and their gradients are gone: "
                    "they can be neither unscaled nor checked. Scale and run the backward pass "
                    "inside `with handle.accumulate():`"
                )
        return original(self, optimizer, *args, **kwargs)

    return unscale


@torch._disable_dynamo
def _guard_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if any(each.optimizer() is optimizer for each in list(_active)):
        return
    for group in optimizer.param_groups:
        for weight in group["params"]:
            updates = owner(weight) if weight.grad is None else None
            if updates is not None:
                raise RuntimeError(
                    f"{type(optimizer).__name__}.step: another optimizer updates "
                    f"{updates.name_of(weight)} in the backward pass "
                    "(torch_lms.step_in_backward), which leaves no gradient for this one; a "
                    "weight can have one optimizer then"
                )


def _leaves(outputs: Any) -> Iterator[Tensor]:
    """The weights that a backward pass from these tensors would give gradients to, as they come."""
    pending: list[Any] = []

    def begin(value: Any) -> None:
        if isinstance(value, Tensor):
            if value.grad_fn is not None:
                pending.append(value.grad_fn)
        elif isinstance(value, Iterable) and not isinstance(value, Iterator):
            for each in value:
                begin(each)

    begin(outputs)
    seen: set[Any] = set(pending)
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is None:
                pending.append(node)
            else:
                yield leaf
