"""Large operators over lists that wait for those that follow at once, and run weight by weight.

For ``test_lists_that_wait.py``: a process with ``TEST_WHOLE_LISTS``, where the CPU has them whole.
"""

from __future__ import annotations

import copy
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from stress import harness
from stress.compare import bits_of, differences
from stress.registry import seed

import torch_lms

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
WIDTH = {"cpu": 128, "cuda": 1536}[DEVICE]
LAYERS = 12
# Parts that follow each other run in one pass over memory.
PASSES = DEVICE == "cuda" or "TEST_LIST_PASSES" in os.environ
WEIGHT = WIDTH * WIDTH * 4

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, foreach=True),
    "amsgrad": lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True),
    "capturable": lambda p: torch.optim.Adam(p, foreach=True, capturable=DEVICE == "cuda"),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, foreach=True, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, foreach=True),
    "nadam": lambda p: torch.optim.NAdam(p, foreach=True),
    "radam": lambda p: torch.optim.RAdam(p, foreach=True),
    "adamax": lambda p: torch.optim.Adamax(p, foreach=True),
    "rprop": lambda p: torch.optim.Rprop(p, foreach=True),
    "asgd": lambda p: torch.optim.ASGD(p, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
}


@pytest.fixture(autouse=True)
def _on_device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def _limit(part: float) -> int:
    """Of what weights, gradients and two states take."""
    return int(part * 4 * LAYERS * WEIGHT)


def _managed(part: float = 0.5, **settings: Any) -> Any:
    usual = {"plan": False, "plan_cache": "off", "deferred_updates": "true"}
    return harness.managed(DEVICE, **{"limit": _limit(part)} | usual | settings)


def _waited() -> int:
    return torch_lms.memory_stats(DEVICE)["deferred.in_lists"]


def _train(
    make: Callable[..., torch.optim.Optimizer],
    steps: int,
    after: Callable[..., None] | None = None,
    alike: bool = False,
) -> dict[str, Any]:
    """Weights, state and losses; biases are too small to be managed."""
    seed()
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = make(model.parameters())
    average = copy.deepcopy(model)
    x = torch.randn(32, WIDTH)
    losses = []
    for step in range(steps):
        loss = (model(x) - x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05, foreach=True)
        optimizer.step()
        if after is not None:
            after(model, optimizer, step)
        optimizer.zero_grad(set_to_none=alike or step % 3 != 0)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)
        losses.append(loss.detach())
    return {
        "weights": model.state_dict(),
        "average": average.state_dict(),
        "state": optimizer.state_dict()["state"],
        "losses": torch.stack(losses),
    }


def _same(run: Callable[[], Any], part: float = 0.5, **settings: Any) -> dict[str, int]:
    expected = bits_of(run())
    with _managed(part, **settings):
        before = torch_lms.memory_stats(DEVICE)
        wrong = differences(expected, bits_of(run()))
        after = torch_lms.memory_stats(DEVICE)
    assert not wrong, wrong[:5]
    return {name: value - before[name] for name, value in after.items()}


SETTINGS: dict[str, dict[str, Any]] = {
    "reactive": {},
    "planned": {"plan": "now"},
    "evicting": {"stress": True},
    "dropping": {"stress": "drop"},
    "all": {"deferred_updates": "all"},
    "random": {"deferred_updates": "random"},
}


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        pytest.param(optimizer, settings, id=f"{optimizer}-{name}")
        for name, settings in SETTINGS.items()
        for optimizer in OPTIMIZERS
        if name in ("reactive", "planned") or optimizer in ("adamw", "rmsprop", "fused")
    ],
)
def test_optimizers(optimizer: str, settings: dict[str, Any]) -> None:
    planned = "plan" in settings
    steps = 14 if planned else 5
    stats = _same(lambda: _train(OPTIMIZERS[optimizer], steps, alike=planned), **settings)
    waited = stats["deferred.in_lists"] + stats["deferred.parts"]
    assert waited > 0
    assert stats["plan.steps"] > 0 or not planned
    assert stats["deferred.in_passes"] <= waited
    if PASSES and optimizer in ("adamw", "amsgrad", "sgd", "rmsprop", "adagrad", "nadam"):
        assert stats["deferred.in_passes"] > 0
    elif not PASSES:
        assert stats["deferred.in_passes"] == 0


def test_gradients_that_are_made_by_lists() -> None:
    """Not in place: what a fused update reads waits to be made, while a plan's choice may wait."""

    def run() -> dict[str, Any]:
        seed()
        model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.randn(512, WIDTH)
        for _ in range(20):
            (model(x) - x).square().mean().backward()
            weights = list(model.parameters())
            halves = torch._foreach_mul([p.grad for p in weights], 0.5)
            for p, half in zip(weights, halves, strict=True):
                p.grad = half
            del halves
            optimizer.step()
            optimizer.zero_grad()
        return dict(model.state_dict())

    assert _same(run, plan="now")["plan.steps"] > 0


def test_two_threads() -> None:
    """Each has lists of its own that wait; nobody waits for the other's operators."""

    def run() -> Any:
        found: list[Any] = [None, None]
        lists = [_lists(), _lists()]

        def work(k: int) -> None:
            a, b = lists[k]
            with torch.no_grad():
                for _ in range(4):
                    made = torch._foreach_sqrt(a)
                    torch._foreach_addcdiv_(b, a, made, value=-0.5)
                    torch._foreach_lerp_(a, b, 0.125)
                    b[k].add_(1)
            found[k] = (a, b)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    for _ in range(3):
        _same(run, part=0.9)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("adamw", "reactive"),
        ("adamw", "planned"),
        ("adamw", "evicting"),
        ("sgd", "dropping"),
        ("fused", "planned"),
        ("rmsprop", "planned"),
    ],
)
def test_weights_that_wait_together(optimizer: str, settings: str) -> None:
    """Many weights of a few kilobytes: pieces of the lists wait and run as one."""
    layers, width = 400, 40 if DEVICE == "cpu" else 256
    steps = 6 if settings == "planned" else 2

    def run() -> Any:
        seed()
        model = torch.nn.Sequential(
            *[torch.nn.Linear(width, width, bias=i % 8 == 0) for i in range(layers)]
        )
        made = OPTIMIZERS[optimizer](model.parameters())
        x = torch.randn(8, width)
        for _ in range(steps):
            loss = sum(layer(x).square().mean() for layer in model)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
            made.step()
            made.zero_grad()
        return {"weights": model.state_dict(), "state": made.state_dict()["state"]}

    expected = bits_of(run())
    limit = int(2 * layers * width * width * 4)
    with _managed(limit=limit, min_block="4KiB", **SETTINGS[settings]):
        before = torch_lms.memory_stats(DEVICE)["deferred.in_lists"]
        wrong = differences(expected, bits_of(run()))
        parts = torch_lms.memory_stats(DEVICE)["deferred.in_lists"] - before
    assert not wrong, wrong[:5]
    assert 0 < parts < 4 * layers * steps, "several at once"


def test_less_moves() -> None:
    """AdamW goes once through weights and state, not several times."""
    moved = {}
    for way in ("chosen", "true"):
        stats = _same(lambda: _train(OPTIMIZERS["adamw"], 8), part=0.3, deferred_updates=way)
        moved[way] = stats["bytes_in"]
    assert moved["true"] < 0.9 * moved["chosen"], moved


@pytest.mark.alone
def test_a_plan_chooses() -> None:
    """Of a chain of operators over lists a plan chooses weights, whose parts wait for their use.

    By what this machine takes for copies and computation: a busy one is asked again.
    """
    layer, limit, batch = (2048, "576MiB", 8192) if DEVICE == "cuda" else (512, "36MiB", 1536)

    def run() -> Any:
        seed()
        model = torch.nn.Sequential(*[torch.nn.Linear(layer, layer) for _ in range(12)]).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.randn(batch, layer, device=DEVICE)
        for _ in range(24):
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
        return dict(model.state_dict())

    expected = bits_of(run())
    for _ in range(6):
        with harness.managed(DEVICE, limit=limit, plan="now", plan_cache="off",
                             min_block="64KiB", deferred_updates=True):  # fmt: skip
            before = torch_lms.memory_stats(DEVICE)["deferred.parts"]
            found = bits_of(run())
            stats = torch_lms.memory_stats(DEVICE)
        assert not differences(expected, found)
        if stats["deferred.parts"] > before:
            break
    assert stats["deferred.parts"] > before, "no plan has had an update wait"
    assert stats["plan.planned"] >= 2, "the step with the updates where they are wanted"
    assert stats["deferred.in_lists"] > 0


def test_reading_a_number_runs_nothing() -> None:
    """A loss is read between step() and zero_grad(): gradients go while updates are done."""

    def blocks() -> int:
        return torch_lms.memory_stats(DEVICE)["blocks.current"]

    with _managed(0.6):
        a, b = _lists()
        loss = torch.ones(1, device=DEVICE)
        with torch.no_grad():
            torch._foreach_add_(a, b)
        assert loss.item() == 1
        before = blocks()
        del b
        assert blocks() == before, "they wait, and hold the gradients"
        a[0].sum()
        assert blocks() <= before - LAYERS


def test_between_steps() -> None:
    """Whoever looks between two steps sees them done."""

    def look(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        weight = model[2].weight
        if step == 1:
            seen.append(weight.detach().clone())
        elif step == 2 and DEVICE == "cpu":
            numbers = (ctypes.c_float * weight.numel()).from_address(weight.data_ptr())
            seen.append(torch.tensor(list(numbers)))
        elif step == 3:
            thread = threading.Thread(target=lambda: seen.append(weight.detach() + 0))
            thread.start()
            thread.join()
        elif step == 4:
            seen.append(copy.deepcopy(optimizer.state_dict()["state"][4]["exp_avg"]))
        elif step == 5:
            weight.data = weight.data * 2

    seen: list[torch.Tensor] = []

    def run() -> dict[str, Any]:
        seen.clear()
        return _train(OPTIMIZERS["adamw"], 8, look) | {"seen": list(seen)}

    assert _same(run)["deferred.in_lists"] > 0


# Chains -----------------------------------------------------------------------------------------


def _lists(
    count: int = 2, side: int = WIDTH, weights: int = 2 * LAYERS
) -> list[list[torch.Tensor]]:
    seed()
    return [[torch.rand(side, side) + 1 for _ in range(weights)] for _ in range(count)]


def _chain(*steps: Callable[..., Any]) -> Callable[[], Any]:
    def run() -> Any:
        a, b = _lists()
        small = [torch.rand(3) for _ in range(2)]
        with torch.no_grad():
            for tensor in a + b:
                tensor.add_(0)  # an operator has used it
            found: Any = None
            for step in steps:
                found = step(a, b, found, small)
        return {"a": a, "b": b, "found": found}

    return run


CHAINS: dict[str, Callable[[], Any]] = {
    "makes": _chain(lambda a, b, f, s: torch._foreach_sqrt(a)),
    "of what is made": _chain(
        lambda a, b, f, s: torch._foreach_sqrt(a),
        lambda a, b, f, s: (torch._foreach_mul_(f, 3.0), f)[1],
        lambda a, b, f, s: (torch._foreach_addcdiv_(b, a, f, value=-0.5), f)[1],
    ),
    "nobody has what is made": _chain(
        lambda a, b, f, s: torch._foreach_sqrt(a),
        lambda a, b, f, s: torch._foreach_addcdiv_(b, a, f, value=-0.5),
        lambda a, b, f, s: None,
    ),
    "made, then made from": _chain(
        lambda a, b, f, s: torch._foreach_neg(a),
        lambda a, b, f, s: torch._foreach_add(f, b, alpha=2),
        lambda a, b, f, s: torch._foreach_div(f, a),
    ),
    "changed after it was read": _chain(
        lambda a, b, f, s: torch._foreach_mul(a, b),
        lambda a, b, f, s: (torch._foreach_zero_(a), f)[1],
        lambda a, b, f, s: (torch._foreach_add_(a, f), f)[1],
    ),
    "another order": _chain(
        lambda a, b, f, s: torch._foreach_mul_(a, b),
        lambda a, b, f, s: torch._foreach_add_(b, a[::-1]),
        lambda a, b, f, s: (torch._foreach_sub_(a[::-1], b), None)[1],
    ),
    "a scalar each": _chain(
        lambda a, b, f, s: torch._foreach_mul_(a, [1.0 + i for i in range(len(a))]),
        lambda a, b, f, s: torch._foreach_addcmul(b, a, a, [0.5 * i for i in range(len(a))]),
    ),
    "a tensor as number": _chain(
        lambda a, b, f, s: torch._foreach_mul_(a, torch.tensor(0.7)),
        lambda a, b, f, s: torch._foreach_mul(a, torch.tensor(2.5)),
        lambda a, b, f, s: (torch._foreach_lerp_(b, f, 0.25), f)[1],
    ),
    "small ones between": _chain(
        lambda a, b, f, s: torch._foreach_abs([*a, *s]),
        lambda a, b, f, s: (torch._foreach_add_([*b, *s], f), f)[1],
        lambda a, b, f, s: torch._foreach_reciprocal(f),
    ),
    "views": _chain(
        lambda a, b, f, s: torch._foreach_sqrt([t.t() for t in a]),
        lambda a, b, f, s: (torch._foreach_mul_([t.t() for t in a], f), f)[1],
    ),
    "view of what is made": _chain(
        lambda a, b, f, s: torch._foreach_sqrt(a),
        lambda a, b, f, s: [t.detach().view(-1)[5:].t() for t in f],
        lambda a, b, f, s: torch._foreach_add(f, 1.0),
    ),
    "looked at in between": _chain(
        lambda a, b, f, s: torch._foreach_sqrt(a),
        lambda a, b, f, s: (f, f[3].sum().item(), f[5].untyped_storage().nbytes()),
        lambda a, b, f, s: (torch._foreach_mul_(f[0], 2.0), *f)[1:],
    ),
    "other data": _chain(
        lambda a, b, f, s: torch._foreach_sqrt(a),
        lambda a, b, f, s: (setattr(f[1], "data", f[2]), f)[1],
        lambda a, b, f, s: (torch._foreach_add_(b, f), f)[1],
    ),
    "memory given back": _chain(
        lambda a, b, f, s: torch._foreach_sqrt(a),
        lambda a, b, f, s: (f[1].untyped_storage().resize_(0), f[2:])[1],
    ),
    "one tensor twice": _chain(
        lambda a, b, f, s: torch._foreach_mul([*a[:-1], a[0]], b),
        lambda a, b, f, s: (torch._foreach_add_(a, f), f)[1],
    ),
    "16 bits": _chain(
        lambda a, b, f, s: [t.bfloat16() for t in a],
        lambda a, b, f, s: (f, torch._foreach_div(f, 3.0)),
        lambda a, b, f, s: (torch._foreach_addcdiv_(f[0], f[1], f[0], value=0.1), f)[1],
    ),
    "a slice of what is made is kept": _chain(
        lambda a, b, f, s: torch._foreach_sqrt(a),
        lambda a, b, f, s: [f[0][3:5], f[7].t()],
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("deferred", ["true", "all", "random"])
def test_chains(chain: str, deferred: str) -> None:
    for stress in (False, True):
        stats = _same(CHAINS[chain], part=0.6, stress=stress, deferred_updates=deferred)
        assert stats["deferred.in_lists"] + stats["deferred.parts"] > 0


def test_within_autograd() -> None:
    """What autograd is to know of runs when it is called; a backward pass has lists of its own."""

    def run(made_by_then: Callable[[], None]) -> Any:
        a, b = _lists()
        for tensor in a:
            tensor.requires_grad_()
        made = torch._foreach_mul(torch._foreach_sqrt(a), b)
        made_by_then()
        sum(t.sum() for t in made).backward()
        return {"gradients": [t.grad for t in a], "made": made}

    def none_waited() -> None:
        assert _waited() == before

    expected = bits_of(run(lambda: None))
    with _managed(0.9):
        before = _waited()
        assert not differences(expected, bits_of(run(none_waited)))


def test_no_room_loses_nothing() -> None:
    """What found no room waits on, and runs where there is some."""
    # On a GPU a limit leaves PyTorch's allocator some slack, in which less than this would fit.
    side, weights = (5792, 2) if DEVICE == "cuda" else (WIDTH, 2 * LAYERS)
    weight = side * side * 4

    def chain(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
        for tensor in a + b:
            tensor.add_(0)
        made = torch._foreach_sqrt(a)
        torch._foreach_mul_(made, 3.0)
        torch._foreach_addcdiv_(b, a, made, value=-0.5)
        return list(made)

    with torch.no_grad():
        a, b = _lists(side=side, weights=weights)
        expected = bits_of({"made": chain(a, b), "a": a, "b": b})
    del a, b
    whole = {"plan": False, "deferred_updates": "true", "slices": "off", "min_block": "4KiB"}
    held = harness.held(DEVICE) if DEVICE == "cuda" else 0
    with harness.managed(DEVICE, limit=2 * weights * weight, **whole):
        a, b = _lists(side=side, weights=weights)
        little = torch.ones(1100)
        with torch.no_grad():
            made = chain(a, b)
            torch_lms.enable(device=DEVICE, limit=held + weight * 3 // 2, **whole)
            assert little.sum().item() == 1100, "whose operator wants nothing that waits"
            for _ in range(2):
                with pytest.raises(torch.OutOfMemoryError):
                    b[0].sum()
            torch_lms.enable(device=DEVICE, limit=held + 2 * weights * weight, **whole)
        assert not differences(expected, bits_of({"made": made, "a": a, "b": b}))


def test_disable_ends_it() -> None:
    expected = bits_of(CHAINS["of what is made"]())
    with _managed(0.6):
        before = _waited()
        found = CHAINS["of what is made"]()
        assert _waited() > before
    assert not differences(expected, bits_of(found))
