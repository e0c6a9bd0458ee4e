"""Optimizers that update each weight in the backward pass, as soon as its gradient is final."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils.hooks import RemovableHandle

from . import _optimizer_checks as _checks
from . import _optimizer_guards as _guards
from ._optimizer_checks import Group

# Optimizers of PyTorch that compute a weight's update from that weight, its gradient, its state
# and the settings of its group alone.
_INDEPENDENT = frozenset(
    getattr(torch.optim, name)
    for name in (
        "ASGD",
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "Muon",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
        "SparseAdam",
    )
    if hasattr(torch.optim, name)
)

_KEEP = (
    "run the backward pass inside `with handle.accumulate():`, which keeps all gradients for "
    "optimizer.step(), or take the optimizer out with handle.remove()"
)


def step_in_backward(
    optimizer: Optimizer, *, assume_independent: bool = False
) -> StepInBackwardHandle:
    """Makes an optimizer update each weight in the backward pass, as soon as its gradient is final.

    The gradient is freed right after, so that gradients and optimizer state come and go during the
    whole backward pass. The optimizer stays the same object, with the same state, settings and
    ``state_dict()``. The loop stays the same too: ``optimizer.step()`` ends the step (and updates
    weights that still have a gradient, such as an accumulated one), ``zero_grad()`` finds nothing.
    Results are equal to the last bit to those of the plain optimizer. What cannot be done without
    all gradients at once, and what would change the results, is refused with an error.

    Args:
        optimizer: one of ``torch.optim`` but ``LBFGS``. Settings must not change between the
            backward pass and ``step()``, which takes no closure.
        assume_independent: take an optimizer that is not known to treat each weight by itself. It
            is run for one weight at a time, and must keep what it remembers in ``state[weight]``.

    Returns:
        A handle, to accumulate gradients and to undo this. It need not be kept.

    Raises:
        TypeError: not an optimizer, or one that needs all gradients or a closure.
        ValueError: a parameter is there twice, or belongs to another such optimizer.
        RuntimeError: several processes train together, or the optimizer has pre-hooks.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"step_in_backward: expected an optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "step_in_backward: LBFGS needs all gradients at once, and runs the model itself; "
            "use its step(closure)"
        )
    known = type(optimizer) in _INDEPENDENT
    if not known and not assume_independent:
        raise TypeError(
            f"step_in_backward: {type(optimizer).__name__} is not known to treat each weight by "
            "itself; if it does, pass assume_independent=True"
        )
    updates = _Updates(optimizer, known)
    updates.attach()
    updates.take_over()
    _guards.add(updates)
    return StepInBackwardHandle(optimizer, updates)


class StepInBackwardHandle:
    """What ``step_in_backward`` has done to an optimizer. Use it between backward passes only."""

    def __init__(self, optimizer: Optimizer, updates: _Updates) -> None:
        self.optimizer = optimizer
        self._updates = updates

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes in here only add up gradients.

        For all micro-batches of a step but the last: the backward pass of the last, outside, then
        updates each weight. With the last one inside as well, ``optimizer.step()`` updates all
        weights at once, as ever: for clipping by the global norm, or a ``GradScaler``.
        """
        self._updates.holding += 1
        try:
            yield
        finally:
            self._updates.holding -= 1

    def remove(self) -> None:
        """Makes the optimizer the plain one again, with all of its state. Idempotent."""
        self._updates.remove()


class _Updates:
    """The hooks on one optimizer's weights and methods.

    The optimizer owns it (through its replaced methods); hooks on weights refer to it weakly, so
    that an optimizer that nobody has any more updates nothing. Weights of several devices may
    become final in several threads at once.
    """

    def __init__(self, optimizer: Optimizer, known: bool) -> None:
        self.active = True
        self.holding = 0
        # Ids of the weights that have been updated since the last step().
        self.updated: set[int] = set()
        self._optimizer = weakref.ref(optimizer)
        self._known = known
        self._update = _without_hooks(type(optimizer))
        self._hooked: dict[int, tuple[Tensor, RemovableHandle | None]] = {}
        # By a weight's id: its group, its position there, and its number in state_dict().
        self._places: dict[int, tuple[int, int, int]] = {}
        # The groups that the plain step would not run as list operators, by its own choice.
        self._one_by_one: set[int] = set()
        # Where the caller makes tensors by default (None: on the CPU), as many optimizers do their
        # counters. In a backward pass PyTorch does not know it.
        self._default_device: torch.device | None = None
        # The settings with which the weights of a group were updated in this step.
        self._settings: dict[int, Group] = {}
        # The methods that were there before, by name; None: those of the class.
        self._methods: dict[str, Any] = {}
        weakref.finalize(self, _unhook, self._hooked).atexit = False

    # What the guards ask.

    def optimizer(self) -> Optimizer | None:
        """The optimizer, if it is still there."""
        return self._optimizer()

    def owns(self, weight: Tensor) -> bool:
        """Whether this updates ``weight`` in the backward pass."""
        return self.active and id(weight) in self._hooked

    def name_of(self, weight: Tensor) -> str:
        """A weight's number (as in ``state_dict()``), name if there is one, and shape."""
        optimizer = self._optimizer()
        place = self._places.get(id(weight))
        if optimizer is None or place is None:
            return f"a parameter of shape {tuple(weight.shape)}"
        names = optimizer.param_groups[place[0]].get("param_names")
        name = f" ({names[place[1]]!r})" if names else ""
        return f"parameter {place[2]}{name} of shape {tuple(weight.shape)}"

    # Weights.

    def attach(self) -> None:
        """Follows the optimizer's groups: hooks for weights that are new (and need gradients),
        none for those that have gone. Checks everything before it changes anything."""
        self._note_default_device()
        optimizer = self._optimizer()
        places: dict[int, tuple[int, int, int]] = {}
        weights: list[Tensor] = []
        one_by_one: set[int] = set()
        for number, group in enumerate(optimizer.param_groups):
            if group.get("differentiable", False):
                raise TypeError(
                    "step_in_backward: an optimizer with differentiable=True keeps the graph of "
                    "its step, for which the backward pass must have ended"
                )
            for position, weight in enumerate(group["params"]):
                if id(weight) in places:
                    raise ValueError(
                        f"step_in_backward: parameter {places[id(weight)][2]} of shape "
                        f"{tuple(weight.shape)} is in the optimizer twice, and its plain step "
                        "would update it twice; give it once"
                    )
                other = _guards.owner(weight)
                if other is not None and other is not self:
                    raise ValueError(
                        f"step_in_backward: {other.name_of(weight)} is updated in the backward "
                        "pass by another optimizer; take that one out first (handle.remove())"
                    )
                places[id(weight)] = (number, position, len(weights))
                weights.append(weight)
            if _takes_lists(group, group["params"]) is False:
                one_by_one.add(number)
        self._refuse_pre_hooks(optimizer)
        _checks.refuse_several_processes()
        self._places, self._one_by_one = places, one_by_one
        for key in [key for key in self._hooked if key not in places]:
            _, hook = self._hooked.pop(key)
            if hook is not None:
                hook.remove()
        on_gradient = _make_hook(weakref.ref(self))
        for weight in weights:
            hooked = self._hooked.get(id(weight))
            if hooked is None or hooked[1] is None:
                # A frozen weight takes no hook; attach() comes again at the end of each step.
                hook = (
                    weight.register_post_accumulate_grad_hook(on_gradient)
                    if weight.requires_grad
                    else None
                )
                self._hooked[id(weight)] = (weight, hook)

    def gradient_is_final(self, weight: Tensor) -> None:
        """Updates a weight whose gradient has just been added up by a backward pass."""
        optimizer = self._optimizer()
        if optimizer is None or not self.active or weight.grad is None:
            return
        if id(weight) in self.updated:
            raise RuntimeError(
                f"step_in_backward: {self.name_of(weight)} has been updated in this step, and now "
                "gets another gradient. Call optimizer.step() after each backward pass that "
                "updates; to add up the gradients of several, run all but the last inside `with "
                "handle.accumulate():`. A weight shared by several blocks under reentrant "
                "checkpointing gets a gradient from each: use use_reentrant=False"
            )
        if self.holding:
            return
        if weight.grad.requires_grad:
            raise RuntimeError(
                f"step_in_backward: the gradient of {self.name_of(weight)} has a graph of its own "
                "(create_graph=True), which an update in place would break; "
                f"{_KEEP}, or take gradients with torch.autograd.grad"
            )
        if not self.updated:
            self._refuse_pre_hooks(optimizer)
            _checks.refuse_several_processes()
        place = self._places.get(id(weight))
        if place is None or not _is_at(optimizer, place, weight):
            return  # moved or taken out by hand: what has a gradient is left to step()
        number = place[0]
        group = optimizer.param_groups[number]
        if number not in self._settings:
            self._settings[number] = _checks.settings_of(group)
        self._run(optimizer, number, group, weight)
        weight.grad = None
        self.updated.add(id(weight))

    def _run(self, optimizer: Optimizer, number: int, group: Group, weight: Tensor) -> None:
        """The optimizer's own step, for this weight alone.

        It runs on a copy of the optimizer, as another thread may be in here for another weight. The
        copy has the very same `state`, which stays where the optimizer and its users look for it.
        """
        alone = {**group, "params": [weight]}
        if number in self._one_by_one:
            alone["foreach"] = False
        elif weight.grad.is_sparse and len(group["params"]) > 1 and _takes_lists(group, [weight]):
            raise RuntimeError(
                f"step_in_backward: {self.name_of(weight)} has a sparse gradient, with which the "
                "plain step would treat its whole group in another way; put it into a group of "
                "its own, or make the optimizer with foreach=False"
            )
        copy = object.__new__(type(optimizer))
        copy.__dict__.update(optimizer.__dict__)
        copy.param_groups = [alone]
        if not self._known:
            # A step of the class that it inherits from may run hooks again.
            copy._optimizer_step_pre_hooks = OrderedDict()
            copy._optimizer_step_post_hooks = OrderedDict()
            before = dict(copy.__dict__), dict(alone)
        version = weight._version
        with self._default_device or contextlib.nullcontext():
            self._update(copy)
        if weight._version == version:
            # Fused kernels do not count as writes, and a later operator of this backward pass that
            # has saved the weight would then take the new value for the one it saved.
            torch.autograd.graph.increment_version(weight)
        if not self._known:
            _checks.refuse_shared_state(optimizer, copy, alone, *before)

    def _note_default_device(self) -> None:
        device = torch.get_default_device()
        self._default_device = None if device.type == "cpu" else device

    def _refuse_pre_hooks(self, optimizer: Optimizer) -> None:
        if optimizer._optimizer_step_pre_hooks:
            raise RuntimeError(
                "step_in_backward: the optimizer has hooks to run before its step "
                "(register_step_pre_hook), but weights are updated before optimizer.step() is "
                "called, and their gradients are gone then. Hooks on gradients "
                "(Tensor.register_hook) and hooks after the step work"
            )

    # The optimizer's methods.

    def take_over(self) -> None:
        """Replaces the methods of the optimizer (of this object, not of its class)."""

        def step(_: Any, *args: Any, **kwargs: Any) -> Any:
            return self._step(*args, **kwargs)

        def zero_grad(_: Any, set_to_none: bool = True) -> None:
            if self.active and not set_to_none:
                raise RuntimeError(
                    "step_in_backward: zero_grad(set_to_none=False) keeps gradients, of zeros, "
                    "with which the plain step updates weights that got no gradient; here they "
                    "are freed. Call zero_grad()"
                )
            self._note_default_device()
            self._plain("zero_grad")(set_to_none)

        def add_param_group(_: Any, param_group: Group) -> None:
            self._plain("add_param_group")(param_group)
            try:
                self.attach()
            except BaseException:
                self.optimizer().param_groups.pop()
                raise

        optimizer = self._optimizer()
        for method in (step, zero_grad, add_param_group):
            before = optimizer.__dict__.get(method.__name__)
            if hasattr(before, "_wrapped_by_lr_sched"):
                # A scheduler has wrapped the step that ours calls, and looks for its mark.
                method._wrapped_by_lr_sched = True
            method._updates = self
            self._methods[method.__name__] = before
            # Bound as a method is, which schedulers rely on, but without a cycle of references.
            setattr(optimizer, method.__name__, types.MethodType(method, weakref.proxy(optimizer)))

    def _plain(self, name: str) -> Callable[..., Any]:
        """The method that was there before."""
        before = self._methods[name]
        if before is not None:
            return before
        optimizer = self._optimizer()
        return getattr(type(optimizer), name).__get__(optimizer)

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        if not self.active:  # somebody has wrapped this method: it stays, and passes through
            return self._plain("step")(*args, **kwargs)
        if (args and args[0] is not None) or kwargs.get("closure") is not None:
            raise RuntimeError(
                "step_in_backward: optimizer.step(closure) is not possible: the closure's backward "
                "pass would update weights in the middle of the step. Run forward and backward "
                "pass before optimizer.step()"
            )
        try:
            self._check_end()
        finally:
            self.updated.clear()
            self._settings.clear()
        # Finds the weights that still have a gradient, runs hooks, and counts for schedulers.
        result = self._plain("step")(*args, **kwargs)
        self.attach()
        return result

    def _check_end(self) -> None:
        optimizer = self._optimizer()
        for key in self.updated:
            weight = self._hooked[key][0] if key in self._hooked else None
            if weight is not None and weight.grad is not None:
                raise RuntimeError(
                    f"step_in_backward: {self.name_of(weight)} got a gradient after it had been "
                    "updated in this step. Wrappers that reduce gradients at the end of the "
                    "backward pass (DistributedDataParallel) do that: they need the plain step; "
                    "so do further backward passes before optimizer.step()"
                )
        for number, used in self._settings.items():
            if number >= len(optimizer.param_groups):
                continue
            now = _checks.settings_of(optimizer.param_groups[number])
            for name, value in used.items():
                if name in now and not _checks.same(value, now[name]):
                    raise RuntimeError(
                        f"step_in_backward: {name!r} of parameter group {number} changed between "
                        "the backward pass, which has updated the weights with the former value, "
                        "and optimizer.step(). Change it before the backward pass"
                    )
        if not self._known and any(not isinstance(key, Tensor) for key in optimizer.state):
            raise _checks.shares_state(optimizer, "entries of `state` that belong to no weight")

    def remove(self) -> None:
        """Undoes everything."""
        if not self.active:
            return
        self.active = False
        _unhook(self._hooked)
        self.updated.clear()
        self._settings.clear()
        optimizer = self._optimizer()
        if optimizer is not None:
            for name, before in self._methods.items():
                there = getattr(optimizer.__dict__.get(name), "__func__", None)
                if getattr(there, "_updates", None) is not self:
                    continue
                if before is None:
                    delattr(optimizer, name)
                else:
                    setattr(optimizer, name, before)
        _guards.release()


def _make_hook(updates: weakref.ref[_Updates]) -> Callable[[Tensor], None]:
    def on_gradient(weight: Tensor) -> None:
        alive = updates()
        if alive is not None:
            alive.gradient_is_final(weight)

    return on_gradient


def _unhook(hooked: dict[int, tuple[Tensor, RemovableHandle | None]]) -> None:
    for _, hook in hooked.values():
        if hook is not None:
            hook.remove()
    hooked.clear()


def _without_hooks(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """The class's step without PyTorch's wrapper, which runs the hooks of a whole step."""
    step = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _is_at(optimizer: Optimizer, place: tuple[int, int, int], weight: Tensor) -> bool:
    number, position, _ = place
    if number >= len(optimizer.param_groups):
        return False
    weights = optimizer.param_groups[number]["params"]
    return position < len(weights) and weights[position] is weight


def _takes_lists(group: Group, weights: list[Tensor]) -> bool | None:
    """Whether the plain step would run list operators (`foreach`) on these weights of a group;
    None where its settings say `fused` or not, or there are no such settings."""
    if "foreach" not in group or group.get("fused") is not None:
        return None
    if group["foreach"] is not None:
        return bool(group["foreach"])
    return _default_to_fused_or_foreach(weights, group.get("differentiable", False))[1]
