"""What updating in the backward pass would get wrong is an error that says what would work."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_  # by name, before anything is guarded
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

import torch_lms


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Frames of errors that were expected keep optimizers until they are collected."""
    gc.collect()
    assert clip_grad_norm_ is nn.utils.clip_grad_norm_
    yield


def _net(**settings: Any) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    named = list(net.named_parameters())
    return net, torch.optim.SGD(named, **({"lr": 0.1, "momentum": 0.9} | settings))


def _loss(net: nn.Module) -> Tensor:
    return net(torch.ones(3, 6)).square().sum()


def _weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


# What is refused at once.


class Plainly(torch.optim.SGD):
    """An optimizer that nobody knows."""


class Counting(torch.optim.SGD):
    """Counts its steps for all weights together."""

    def __init__(self, where: str, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.where, self.count = where, 0
        self.param_groups[0]["count"] = 0

    def step(self, closure: Any = None) -> None:
        if self.where == "attribute":
            self.count += 1
        elif self.where == "group":
            self.param_groups[0]["count"] += 1
        else:
            self.state["count"] = self.state.get("count", 0) + 1
        super().step()


def test_only_optimizers_that_are_known_to_treat_each_weight_by_itself() -> None:
    net, _ = _net()
    with pytest.raises(TypeError, match="expected an optimizer, got Sequential"):
        torch_lms.step_in_backward(net)
    with pytest.raises(TypeError, match="LBFGS needs all gradients at once"):
        torch_lms.step_in_backward(torch.optim.LBFGS(net.parameters()), assume_independent=True)
    with pytest.raises(TypeError, match="Plainly is not known .* assume_independent=True"):
        torch_lms.step_in_backward(Plainly(net.parameters()))
    with pytest.raises(TypeError, match="differentiable=True"):
        torch_lms.step_in_backward(torch.optim.SGD(net.parameters(), differentiable=True))
    assert not any(p._post_accumulate_grad_hooks for p in net.parameters())


@pytest.mark.parametrize(
    ("where", "said"),
    [("attribute", "its attribute 'count'"), ("group", "'count' of a parameter group")],
)
def test_an_unknown_optimizer_that_shares_what_it_remembers(where: str, said: str) -> None:
    net, _ = _net()
    optimizer = Counting(where, net.parameters())
    torch_lms.step_in_backward(optimizer, assume_independent=True)
    with pytest.raises(RuntimeError, match=said):
        _loss(net).backward()


def test_an_unknown_optimizer_with_state_of_no_weight() -> None:
    net, _ = _net()
    optimizer = Counting("state", net.parameters())
    torch_lms.step_in_backward(optimizer, assume_independent=True)
    _loss(net).backward()
    with pytest.raises(RuntimeError, match="belong to no weight"):
        optimizer.step()


def test_a_weight_has_one_optimizer() -> None:
    net, first = _net()
    second = torch.optim.SGD(net[2].parameters(), lr=0.1)
    handle = torch_lms.step_in_backward(first)
    said = r"parameter 2 \('2.weight'\) of shape \(2, 8\)"
    with pytest.raises(ValueError, match=f"{said} is updated in the backward pass by another"):
        torch_lms.step_in_backward(second)
    third = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    torch_lms.step_in_backward(third)
    with pytest.raises(ValueError, match=f"{said} is updated"):
        third.add_param_group({"params": net[2].parameters()})
    assert len(third.param_groups) == 1
    _loss(net).backward()
    with pytest.raises(RuntimeError, match=f"SGD.step: another optimizer updates {said}"):
        second.step()
    first.step()
    handle.remove()
    torch_lms.step_in_backward(second)


def test_a_weight_that_is_given_twice() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.SGD([weight, weight], lr=0.1)
    with pytest.raises(ValueError, match=r"parameter 0 of shape \(2,\) is in the optimizer twice"):
        torch_lms.step_in_backward(optimizer)


def test_hooks_before_the_step() -> None:
    net, optimizer = _net()
    hook = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="register_step_pre_hook"):
        torch_lms.step_in_backward(optimizer)
    hook.remove()
    torch_lms.step_in_backward(optimizer)
    optimizer.register_step_pre_hook(lambda *_: None)
    before = _weights(net)
    with pytest.raises(RuntimeError, match="register_step_pre_hook"):
        _loss(net).backward()
    assert _same(_weights(net), before)


def test_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer = _net()
    handle = torch_lms.step_in_backward(optimizer)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    before = _weights(net)
    with pytest.raises(RuntimeError, match="several processes train together"):
        _loss(net).backward()
    assert _same(_weights(net), before)
    handle.remove()
    with pytest.raises(RuntimeError, match="several processes train together"):
        torch_lms.step_in_backward(optimizer)


# What is refused when it happens.


def test_a_second_backward_pass_in_a_step() -> None:
    net, optimizer = _net()
    torch_lms.step_in_backward(optimizer)
    _loss(net).backward()
    with pytest.raises(
        RuntimeError, match=r"parameter \d \('[02].(weight|bias)'\) .* gets another gradient"
    ):
        _loss(net).backward()
    with pytest.raises(RuntimeError, match="got a gradient after it had been updated"):
        optimizer.step()
    optimizer.zero_grad()
    _loss(net).backward()  # a step has ended: on it goes
    optimizer.step()


def test_a_second_backward_pass_that_accumulates_too_late() -> None:
    net, optimizer = _net()
    handle = torch_lms.step_in_backward(optimizer)
    _loss(net).backward()
    with handle.accumulate(), pytest.raises(RuntimeError, match="gets another gradient"):
        _loss(net).backward()


def test_reentrant_checkpointing_of_a_shared_weight() -> None:
    net, optimizer = _net()
    shared = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)
    torch_lms.step_in_backward(optimizer)
    x = torch.ones(3, 6, requires_grad=True)
    for _ in range(2):
        x = checkpoint(shared, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        x.sum().backward()


@pytest.mark.parametrize("settings", [{}, {"foreach": True}, {"fused": True}])
def test_a_weight_that_is_needed_after_its_update(settings: dict[str, bool]) -> None:
    """The tail of the backward pass has saved a weight that it gives no gradient to."""

    def run() -> None:
        loss.backward()
        optimizer.step()

    torch.manual_seed(1)
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1, **settings)
    torch_lms.step_in_backward(optimizer)
    loss = second(first(torch.ones(3, 6)) @ second.weight.detach()).square().sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run()
    optimizer.zero_grad()


def test_a_graph_that_is_kept_cannot_be_used_again() -> None:
    net, optimizer = _net(fused=True)
    torch_lms.step_in_backward(optimizer)
    loss = _loss(net)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
def test_gradients_with_a_graph() -> None:
    net, optimizer = _net()
    torch_lms.step_in_backward(optimizer)
    before = _weights(net)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        _loss(net).backward(create_graph=True)
    assert _same(_weights(net), before)


def test_gradient_penalties_by_autograd_grad_work() -> None:
    def run(in_backward: bool) -> list[Tensor]:
        net, optimizer = _net()
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = _loss(net)
            grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
            (loss + sum(grad.square().sum() for grad in grads)).backward()
            optimizer.step()
        return _weights(net)

    assert _same(run(True), run(False))


def test_closures() -> None:
    net, optimizer = _net()
    torch_lms.step_in_backward(optimizer)
    for call in (lambda c: optimizer.step(c), lambda c: optimizer.step(closure=c)):
        with pytest.raises(RuntimeError, match=r"step\(closure\) is not possible"):
            call(lambda: _loss(net))
    optimizer.step(None)


def test_zeros_for_gradients() -> None:
    net, optimizer = _net()
    torch_lms.step_in_backward(optimizer)
    with pytest.raises(RuntimeError, match="set_to_none=False"):
        optimizer.zero_grad(set_to_none=False)


def test_settings_that_change_too_late() -> None:
    net, optimizer = _net(lr=torch.tensor(0.1), foreach=False)
    torch_lms.step_in_backward(optimizer)
    _loss(net).backward()
    optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(RuntimeError, match="'momentum' of parameter group 0 changed between"):
        optimizer.step()
    _loss(net).backward()
    optimizer.param_groups[0]["lr"].mul_(2)
    with pytest.raises(RuntimeError, match="'lr' of parameter group 0 changed between"):
        optimizer.step()
    _loss(net).backward()
    optimizer.step()


@pytest.mark.parametrize("clip", ["by_name", "clip_grad_norm_", "clip_grad_value_"])
def test_clipping_after_the_backward_pass(clip: str) -> None:
    net, optimizer = _net()
    handle = torch_lms.step_in_backward(optimizer)
    call = clip_grad_norm_ if clip == "by_name" else getattr(nn.utils, clip)
    _loss(net).backward()
    with pytest.raises(RuntimeError, match=r"parameter 0 \('0.weight'\).*handle.accumulate"):
        call(net.parameters(), 1.0)
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    call(other.parameters(), 0.1)  # nobody's business
    assert 0 < other.weight.grad.abs().max() <= 0.1
    optimizer.step()
    handle.remove()
    assert clip_grad_norm_ is nn.utils.clip_grad_norm_


def test_scalers_of_losses() -> None:
    net, optimizer = _net()
    handle = torch_lms.step_in_backward(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(RuntimeError, match=r"parameter \d .*handle.accumulate"):
        scaler.scale(_loss(net))
    with pytest.raises(RuntimeError, match=r"parameter \d .*handle.accumulate"):
        scaler.scale([_loss(net)])
    other, its_optimizer = _net()
    scaler.scale(_loss(other)).backward()
    scaler.step(its_optimizer)
    off = torch.amp.GradScaler("cpu", enabled=False)
    off.scale(_loss(net)).backward()
    with pytest.raises(RuntimeError, match="GradScaler.unscale_: weights have been updated"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="GradScaler.step: weights have been updated"):
        scaler.step(optimizer)
    off.step(optimizer)
    handle.remove()
    scaler.scale(_loss(net)).backward()
    scaler.step(optimizer)


def test_guards_leave_with_the_last_optimizer() -> None:
    methods = [nn.utils.clip_grad_norm_, torch.amp.GradScaler.scale]
    hooks = dict(_global_optimizer_pre_hooks)
    assert hooks == {}
    _, first = _net()
    _, second = _net()
    handle = torch_lms.step_in_backward(first)
    torch_lms.step_in_backward(second)
    assert nn.utils.clip_grad_norm_ is not methods[0]
    handle.remove()
    assert nn.utils.clip_grad_norm_ is not methods[0]
    del second
    assert methods == [nn.utils.clip_grad_norm_, torch.amp.GradScaler.scale]
    assert hooks == _global_optimizer_pre_hooks


def test_sparse_gradients_in_a_group_of_list_operators() -> None:
    tables = nn.ModuleList(nn.Embedding(8, 4, sparse=True) for _ in range(2))
    optimizer = torch.optim.SGD(tables.parameters(), lr=0.1, foreach=True)
    torch_lms.step_in_backward(optimizer)
    with pytest.raises(RuntimeError, match="sparse gradient.*group of its own"):
        sum(table(torch.tensor([1])).sum() for table in tables).backward()


def test_gradients_that_a_wrapper_puts_back() -> None:
    """DistributedDataParallel writes gradients at the end of the backward pass."""
    net, optimizer = _net()
    torch_lms.step_in_backward(optimizer)
    _loss(net).backward()
    net[0].weight.grad = torch.zeros_like(net[0].weight)
    with pytest.raises(RuntimeError, match="DistributedDataParallel"):
        optimizer.step()


def test_an_error_in_the_backward_pass_ends_with_step() -> None:
    net, optimizer = _net()
    torch_lms.step_in_backward(optimizer)

    def fail(grad: Tensor) -> None:
        raise ZeroDivisionError

    hook = net[0].weight.register_hook(fail)
    before = copy.deepcopy(net)
    with pytest.raises(ZeroDivisionError):
        _loss(net).backward()
    assert torch.equal(net[0].weight, before[0].weight)
    hook.remove()
    optimizer.zero_grad()
    optimizer.step()
    _loss(net).backward()
    optimizer.step()
    assert not torch.equal(net[0].weight, before[0].weight)
