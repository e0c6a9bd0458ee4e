"""Optimizers' updates that wait: training loops have the same bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import deferral
import pytest
import torch
from deferral import MODES, managed_tensor, put_off, waiting
from stress import harness
from stress.compare import bits_of, differences
from stress.networks import mlp
from stress.registry import data, seed

import torch_lms

pytestmark = pytest.mark.filterwarnings("ignore")
device = deferral.on_device


def _device() -> str:
    return torch.get_default_device().type


def _same(run: Callable[[], dict[str, Any]], least: int = 1, **settings: Any) -> None:
    """Whether a run has the same bits in plain PyTorch, and in every mode."""
    device = _device()
    expected = bits_of(run())
    assert not differences(expected, bits_of(run())), "two plain runs differ"
    for mode in MODES:
        with harness.managed(device, deferred_updates=mode, **({"stress": True} | settings)):
            before = put_off()
            result = run()
            wrong = differences(expected, bits_of(result))
            assert not wrong, f"{mode}: {wrong[:5]}"
            assert put_off() >= before + least, "nothing waited"
            wrong = differences(expected, bits_of(result))
        assert not wrong and not differences(expected, bits_of(result)), "after disable()"


def _optimizer(model: torch.nn.Module, form: str, **more: Any) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"fused": {"fused": True}, "foreach": {"foreach": True}}.get(
        form, {"foreach": False}
    )
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options, **more)


FORMS = pytest.mark.parametrize("form", ["fused", "foreach", "plain"])


@FORMS
@pytest.mark.parametrize("to_none", [True, False])
def test_accumulation_and_clipping(form: str, to_none: bool) -> None:
    def run() -> dict[str, Any]:
        seed()
        model = mlp()
        optimizer = _optimizer(model, form)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        losses, norms = [], []
        for step in range(3):
            for part in range(4):
                x = data(16, 64, device=_device(), value=10 * step + part)
                loss = (model(x) - x).square().mean() / 4
                loss.backward()
                losses.append(loss.detach())
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=to_none)
        return {"losses": losses, "norms": norms, "weights": dict(model.state_dict())}

    _same(run)


@FORMS
def test_what_follows_a_step(form: str) -> None:
    """A rate changed at once, averages, evaluation, saved state, steps on old gradients."""

    def run() -> dict[str, Any]:
        seed()
        model = mlp()
        average = copy.deepcopy(model)
        optimizer = _optimizer(model, form)
        seen: dict[str, Any] = {}
        for step in range(4):
            x = data(16, 64, device=_device(), value=step)
            (model(x) - x).square().mean().backward()
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= 0.3
            optimizer.step()  # once more, on the same gradients
            if step == 1:
                seen["state"] = copy.deepcopy(optimizer.state_dict()["state"])
                seen["weights"] = {k: v.clone() for k, v in model.state_dict().items()}
            if step == 2:
                with torch.no_grad():
                    for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                        mine.lerp_(other, 0.1)
            optimizer.zero_grad()
            if step == 3:
                with torch.inference_mode():
                    seen["evaluation"] = model(x).clone()
        return seen | {"average": dict(average.state_dict()), "weights": dict(model.state_dict())}

    _same(run)


@FORMS
def test_tied_weights_and_two_optimizers(form: str) -> None:
    def run() -> dict[str, Any]:
        seed()
        table = torch.nn.Embedding(128, 64)
        head = torch.nn.Linear(64, 128, bias=False)
        head.weight = table.weight
        middle = torch.nn.Linear(64, 64)
        both = [_optimizer(table, form), _optimizer(middle, form, weight_decay=0.1)]
        again = torch.optim.SGD([table.weight], lr=0.1, momentum=0.9)  # the same weight once more
        tokens = torch.arange(128)
        for _ in range(3):
            loss = torch.nn.functional.cross_entropy(head(middle(table(tokens))), tokens)
            loss.backward()
            for optimizer in (*both, again):
                optimizer.step()
            for optimizer in both:
                optimizer.zero_grad()
        return {"table": table.weight, "middle": dict(middle.state_dict()), "loss": loss}

    _same(run)


def test_scaled_losses() -> None:
    """GradScaler: the update is called with its scale and with what it found, and these change."""

    def run() -> dict[str, Any]:
        seed()
        model = mlp()
        optimizer = _optimizer(model, "fused")
        scaler = torch.amp.GradScaler(_device(), init_scale=2.0**10, growth_interval=1)
        weights = []
        for step in range(4):
            x = data(16, 64, device=_device(), value=step)
            if step == 2:
                x[0, 0] = float("inf")  # this step is left out
            scaler.scale((model(x) - x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            weights.append({k: v.clone() for k, v in model.state_dict().items()})
        return {"weights": weights, "scale": scaler.get_scale()}

    _same(run)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_small_arguments_are_kept(found: float) -> None:
    """The rate, the scale, what was found and the steps are those of the call."""

    def run() -> dict[str, Any]:
        seed()
        model = mlp()
        rate = torch.tensor(1e-2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
        scale, inf = torch.tensor(2.0), torch.tensor(found)
        optimizer.grad_scale, optimizer.found_inf = scale, inf
        x = data(16, 64, device=_device())
        for _ in range(2):
            (model(x) - x).square().mean().backward()
            optimizer.step()
            before = [rate.item(), scale.item(), inf.item()]
            rate.fill_(100), scale.fill_(3.0), inf.fill_(1 - found)
            for state in optimizer.state.values():
                state["step"].add_(7)
            optimizer.zero_grad()
            weights = {k: v.clone() for k, v in model.state_dict().items()}
            rate.fill_(before[0]), scale.fill_(before[1]), inf.fill_(before[2])
        return weights

    _same(run)


def test_an_interrupt_in_between() -> None:
    def run() -> dict[str, Any]:
        seed()
        model = mlp()
        optimizer = _optimizer(model, "fused")
        x = data(16, 64, device=_device())
        for interrupted in (False, True, False):
            try:
                (model(x) - x).square().mean().backward()
                optimizer.step()
                if interrupted:
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass
            optimizer.zero_grad()
        return dict(model.state_dict())

    _same(run)


def test_by_default_everything_runs_when_called(device: str) -> None:
    with harness.managed(device, stress=True):
        before = put_off()
        weight = managed_tensor()
        weight.mul_(2)
        assert waiting() == 0 and put_off() == before


def test_updates_wait_alone(device: str) -> None:
    """An optimizer's lists wait, and no other operator does."""
    with harness.managed(device, stress=True, deferred_updates="updates"):
        weight = managed_tensor()
        weight.mul_(2)
        assert waiting() == 0
        model = mlp()
        optimizer = _optimizer(model, "fused")
        x = data(16, 64, device=_device())
        for _ in range(2):  # state is made in the first
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
        large = [p for p in model.parameters() if p.nbytes >= 4096]
        assert waiting() == len(large) > 1
        _ = large[0] + 0
        assert waiting() == len(large) - 1


def _steps(count: int, layer: int, batch: int) -> dict[str, Any]:
    seed()
    model = torch.nn.Sequential(*[torch.nn.Linear(layer, layer) for _ in range(12)])
    optimizer = _optimizer(model, "fused")
    x = data(batch, layer, device=_device())
    for _ in range(count):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return dict(model.state_dict())


# What a step has to be like for a plan: the size of a layer, and the limit for twelve of them.
SIZES = {"cpu": (256, "6MiB"), "cuda": (2048, "384MiB")}
# Likewise, with so much computation beside the optimizer that its copies fit there, and a batch.
MUCH_TO_COMPUTE = {"cpu": (512, "36MiB", 1536), "cuda": (2048, "576MiB", 8192)}


def test_planned_steps(device: str) -> None:
    """Steps repeat with the parts where they run: they are learnt and planned like others."""
    layer, limit = SIZES[device]
    expected = bits_of(_steps(16, layer=layer, batch=256))
    with harness.managed(
        device, limit=limit, plan="now", deferred_updates="updates", min_block="64KiB"
    ):
        before = put_off()
        actual = bits_of(_steps(16, layer=layer, batch=256))
        stats = torch_lms.memory_stats(device)
    harness.check_same(expected, actual, "planned")
    assert stats["deferred.parts"] > before + 12 * 8
    assert stats["plan.steps"] > 2 and stats["evictions"] > 0


@pytest.mark.alone
def test_a_plan_chooses(device: str) -> None:
    """The optimizer is all copies, the rest all computation: a plan has some updates wait.

    By what this machine takes for both: a busy one is asked again.
    """
    layer, limit, batch = MUCH_TO_COMPUTE[device]
    expected = bits_of(_steps(20, layer=layer, batch=batch))
    for _ in range(6):
        with harness.managed(device, limit=limit, plan="now", plan_cache="off",
                             min_block="64KiB", deferred_updates=True):  # fmt: skip
            before = put_off()
            actual = bits_of(_steps(20, layer=layer, batch=batch))
            stats = torch_lms.memory_stats(device)
        harness.check_same(expected, actual, "planned")
        assert stats["plan.steps"] > 2
        if stats["deferred.parts"] > before:
            break
    assert stats["deferred.parts"] > before, "no plan has had an update wait"
    assert stats["plan.planned"] >= 2, "the step with the updates where they are wanted"
