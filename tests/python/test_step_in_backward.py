"""Updating each weight in the backward pass gives the bits of the plain optimizer."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from step_in_backward_support import (
    STEPS,
    Make,
    Net,
    equal,
    fresh,
    loss_of,
    maker,
    outcome,
    train,
)
from torch import nn

import torch_lms

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIMIZERS: dict[str, Make] = {
    f"{name}-{'-'.join(f'{k}={v}' for k, v in settings.items())}": maker(name, **settings)
    for name, settings in (
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "foreach": True}),
        ("SGD", {"momentum": 0.9, "weight_decay": 0.01, "maximize": True}),
        ("SGD", {"momentum": 0.9, "fused": True}),
        ("Adam", {}),
        ("Adam", {"foreach": True, "amsgrad": True}),
        ("Adam", {"fused": True, "maximize": True}),
        ("AdamW", {"foreach": False, "amsgrad": True}),
        ("AdamW", {"foreach": True}),
        ("AdamW", {"fused": True, "amsgrad": True}),
        ("RMSprop", {"momentum": 0.9, "centered": True}),
        ("RMSprop", {"foreach": True}),
        ("Adagrad", {"lr_decay": 0.01}),
        ("Adagrad", {"foreach": True}),
        ("Adagrad", {"fused": True}),
        ("Adafactor", {}),
        ("Adafactor", {"foreach": True}),
        ("Adadelta", {"foreach": True}),
        ("Adamax", {}),
        ("ASGD", {"foreach": True}),
        ("NAdam", {"foreach": True}),
        ("RAdam", {}),
        ("Rprop", {"foreach": True}),
        ("Muon", {}),
    )
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_same_bits(name: str) -> None:
    assert equal(train(OPTIMIZERS[name], True), train(OPTIMIZERS[name], False))


# PyTorch has no fused Adagrad for CUDA to compare with.
ON_A_GPU = [name for name in OPTIMIZERS if name != "Adagrad-fused=True"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*ON_A_GPU, "capturable"])
def test_same_bits_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    make = OPTIMIZERS.get(name) or maker("AdamW", capturable=True)
    with torch.device("cuda"):
        plain = train(make, False, autocast=True)
        assert equal(train(make, True, autocast=True), plain)


@pytest.mark.parametrize("name", ["AdamW-fused=True-amsgrad=True", "Adafactor-", "Muon-"])
def test_same_bits_under_autocast(name: str) -> None:
    plain = train(OPTIMIZERS[name], False, autocast=True)
    assert equal(train(OPTIMIZERS[name], True, autocast=True), plain)


def test_the_plain_run_depends_on_what_is_compared() -> None:
    """The comparison sees a schedule, a precision, and a weight decay that are missing."""
    make = OPTIMIZERS["AdamW-foreach=True"]
    plain = train(make, False)
    assert not equal(train(make, False, schedule=False), plain)
    assert not equal(train(make, False, autocast=True), plain)
    assert not equal(train(maker("AdamW", foreach=True, weight_decay=0.02), False), plain)


@pytest.mark.parametrize("plan", ["off", "now"])
def test_same_bits_under_a_limit(plan: str) -> None:
    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(6)))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        for step in range(STEPS):
            x = torch.randn(64, 96, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return outcome(net, optimizer)

    plain = copy.deepcopy(run(False))
    with torch_lms.managed(
        device="cpu", limit=600_000, min_block=4096, plan=plan, plan_seconds=0.05
    ):
        assert equal(run(True), plain)
        stats = torch_lms.memory_stats("cpu")
    assert stats["evictions"] > 0
    assert (stats["plan.steps"] > 0) == (plan == "now")


def test_gradients_are_freed_one_by_one() -> None:
    net, optimizer = fresh(maker("Adam"))
    torch_lms.step_in_backward(optimizer)
    held = []
    for p in net.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda _: held.append(sum(q.grad is not None for q in net.parameters()))
            )
    loss_of(net, 0).backward()
    assert held == [0] * len(held)
    assert len(held) == sum(p.requires_grad for p in net.parameters())


class Counting(torch.optim.SGD):
    """Makes a counter on the default device, as most optimizers do. (Theirs cannot be read where
    that is "meta", which any machine has.)"""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and "step" not in self.state[p]:
                    self.state[p]["step"] = torch.tensor(0.0)
        super().step()


@pytest.mark.parametrize("in_a_thread", [False, True])
@pytest.mark.parametrize("told_by", ["step_in_backward", "zero_grad", "step"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_state_is_made_on_the_default_device(device: str, told_by: str, in_a_thread: bool) -> None:
    """On that of the latest call to the optimizer, which the backward pass itself does not see."""
    net, optimizer = fresh(lambda net: Counting(net.parameters(), lr=0.1))
    other = {"meta": "cpu", "cpu": "meta"}[device]

    def call(name: str, function: Callable[[], Any]) -> None:
        with torch.device(device if name == told_by else other):
            function()

    def update(use_expert: bool) -> None:
        loss = loss_of(net, 0, use_expert=use_expert)
        if in_a_thread:
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        else:
            with torch.device(device):
                loss.backward()

    use = functools.partial(torch_lms.step_in_backward, assume_independent=True)
    call("step_in_backward", lambda: use(optimizer))
    if told_by == "step":
        update(use_expert=False)
        call("step", optimizer.step)
    elif told_by == "zero_grad":
        call("zero_grad", optimizer.zero_grad)
    before = set(optimizer.state)
    update(use_expert=True)
    made = [state["step"].device.type for p, state in optimizer.state.items() if p not in before]
    assert made and set(made) == {device}


# Checkpoints.


@pytest.mark.parametrize("first", [True, False])
def test_checkpoints_go_from_one_to_the_other(first: bool) -> None:
    make = OPTIMIZERS["AdamW-fused=True-amsgrad=True"]

    def run(modes: list[bool]) -> Any:
        saved: Any = None
        for part, in_backward in enumerate(modes):
            net, optimizer = fresh(make, seed=part + 1)
            if in_backward:
                torch_lms.step_in_backward(optimizer)
            if saved is not None:
                loaded = torch.load(io.BytesIO(saved))
                net.load_state_dict(loaded["net"])
                optimizer.load_state_dict(loaded["optimizer"])
            for step in range(5):
                optimizer.zero_grad()
                loss_of(net, 5 * part + step).backward()
                optimizer.step()
            file = io.BytesIO()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
            saved = file.getvalue()
        return outcome(net, optimizer)

    assert equal(run([first, not first, first]), run([False, False, False]))


def test_copies_and_pickles_are_plain_optimizers() -> None:
    net, optimizer = fresh(maker("Adam"))
    torch_lms.step_in_backward(optimizer)
    loss_of(net, 0).backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save((net, optimizer), file)
    file.seek(0)
    for twin, its_optimizer in (
        copy.deepcopy((net, optimizer)),
        torch.load(file, weights_only=False),
    ):
        loss_of(twin, 1).backward()
        before = copy.deepcopy(list(twin.parameters()))
        assert all(p.grad is not None for p in twin.parameters() if p.requires_grad)
        assert "step" not in vars(its_optimizer)
        its_optimizer.step()
        assert not equal(list(twin.parameters()), before)


# Settings, schedulers, hooks and groups.


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_schedulers_see_the_steps(scheduler_first: bool) -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = fresh(maker("SGD", momentum=0.9))

        def schedulers() -> Any:
            one = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
            return one, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        made = schedulers() if scheduler_first else None
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        made = made or schedulers()
        for step in range(8):
            optimizer.zero_grad()
            loss_of(net, step).backward()
            optimizer.step()
            for scheduler in made:
                scheduler.step()
        return outcome(net, optimizer)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equal(run(True), run(False))


def test_a_scheduler_that_comes_too_early_is_still_warned_about() -> None:
    net, optimizer = fresh(maker("SGD"))
    torch_lms.step_in_backward(optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loss_of(net, 0).backward()
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


def test_settings_groups_and_frozen_weights_may_change() -> None:
    # In these steps some weights wait for step(), which finds out what has changed.
    untold = {4, 6, 8}

    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        net = Net()
        optimizer = torch.optim.AdamW(net.layers.parameters(), lr=torch.tensor(0.01))
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        for step in range(10):
            if step == 2:
                optimizer.add_param_group({"params": net.conv.parameters(), "lr": 0.1})
            if step == 3:
                optimizer.param_groups[0]["lr"].mul_(0.5)
                optimizer.param_groups[1]["weight_decay"] = 0.3
            if step == 4:
                optimizer.param_groups[1]["params"].append(net.norm.weight)  # behind its back
            if step == 5:
                optimizer.add_param_group({"params": [net.frozen]})
            if step == 6:
                net.frozen.requires_grad_(True)
            if step == 8:
                optimizer.state.pop(optimizer.param_groups[0]["params"].pop(0))
            optimizer.zero_grad()
            loss_of(net, step).backward()
            if in_backward and step not in untold:
                groups = optimizer.param_groups
                assert all(p.grad is None for group in groups for p in group["params"])
            optimizer.step()
        return outcome(net, optimizer)

    assert equal(run(True), run(False))


class Subclass(nn.Parameter):
    """A parameter for which list operators are not chosen by default."""


@pytest.mark.parametrize("kinds", [(nn.Parameter, Subclass), (nn.Parameter, nn.Parameter)])
def test_list_operators_run_where_the_plain_step_would_run_them(
    kinds: tuple[type, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What suits all weights of a group is chosen for each of them."""
    module = inspect.getmodule(torch.optim.Optimizer)
    monkeypatch.setattr(module, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])

    def operators(in_backward: bool) -> set[str]:
        weights = [kind(torch.ones(3)) for kind in kinds]
        optimizer = torch.optim.Adam(weights, lr=0.1)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        with torch.profiler.profile() as profile:
            sum(weight.square().sum() for weight in weights).backward()
            optimizer.step()
        return {event.key for event in profile.key_averages() if "_foreach" in event.key}

    assert operators(True) == operators(False)
    assert bool(operators(True)) == (Subclass not in kinds)


def test_hooks_after_the_step_run_once_a_step_on_updated_weights() -> None:
    def run(in_backward: bool) -> list[Any]:
        net, optimizer = fresh(maker("Adam"))
        seen: list[Any] = []
        optimizer.register_step_post_hook(
            lambda *_: seen.append([p.detach().clone() for p in net.parameters()])
        )
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(net, step).backward()
            optimizer.step()
        return seen

    seen = run(True)
    assert len(seen) == 4
    assert equal(seen, run(False))


def test_removing_it_restores_the_plain_optimizer() -> None:
    def run(parts: list[bool]) -> Any:
        net, optimizer = fresh(maker("Adam", fused=True))
        scheduler = None
        for part, in_backward in enumerate(parts):
            handle = torch_lms.step_in_backward(optimizer) if in_backward else None
            # Wraps step() while it is ours.
            scheduler = scheduler or torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            for step in range(4):
                optimizer.zero_grad()
                loss_of(net, 4 * part + step).backward()
                assert (net.conv.weight.grad is None) == in_backward
                optimizer.step()
                scheduler.step()
            if handle is not None:
                handle.remove()
                handle.remove()
                assert not any(p._post_accumulate_grad_hooks for p in net.parameters())
        return outcome(net, optimizer)

    assert equal(run([True, False, True]), run([False, False, False]))


def test_without_the_optimizer_nothing_is_updated() -> None:
    net, optimizer = fresh(maker("Adam"))
    torch_lms.step_in_backward(optimizer)
    alive = weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert alive() is None
        assert not any(p._post_accumulate_grad_hooks for p in net.parameters())
    finally:
        gc.enable()
    before = copy.deepcopy(list(net.parameters()))
    loss_of(net, 0).backward()
    assert net.conv.weight.grad is not None
    assert equal(list(net.parameters()), before)


class Halved(torch.optim.SGD):
    """An optimizer of somebody's own: it keeps what it remembers with each weight."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["count"] = self.state[p].get("count", 0) + 1
                    p.grad.div_(1 + self.state[p]["count"])
        super().step()


def test_optimizers_of_ones_own_on_their_makers_word() -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = fresh(lambda net: Halved(net.parameters(), lr=0.1, momentum=0.9))
        calls = []
        optimizer.register_step_post_hook(lambda *_: calls.append(0))
        if in_backward:
            torch_lms.step_in_backward(optimizer, assume_independent=True)
        for step in range(5):
            optimizer.zero_grad()
            loss_of(net, step, use_expert=step % 2 == 0).backward()
            assert (net.conv.weight.grad is None) == in_backward
            optimizer.step()
        assert len(calls) >= 5
        return len(calls), outcome(net, optimizer)

    torch.optim.SGD([torch.zeros(1)])  # PyTorch wraps SGD.step when the first one is made
    assert equal(run(True), run(False))
