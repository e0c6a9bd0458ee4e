"""Updating each weight in the backward pass gives the bits of the plain optimizer."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torch_lms

STEPS = 20
Make = Callable[[Any], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny operators lose more to waiting for threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """Weights of several shapes: one is used twice, one in some steps only, one is frozen."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.expert = nn.Linear(width, width)
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens: Tensor, use_expert: bool = True) -> Tensor:
        x = self.embed(tokens)
        x = self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2)) * self.frozen
        for layer in self.layers:
            x = x + functional.gelu(layer(x))
        if use_expert:
            x = x + self.expert(x).tanh()
        return functional.linear(x, self.embed.weight) * self.temperature


def _groups(net: Net) -> list[dict[str, Any]]:
    """Matrices and the rest, with weight decay on the first."""
    matrices = [p for p in net.parameters() if p.dim() > 1]
    return [
        {"params": matrices, "weight_decay": 0.05},
        {"params": [p for p in net.parameters() if p.dim() <= 1]},
    ]


def _matrices(net: Net) -> list[Tensor]:
    return [p for p in net.parameters() if p.dim() == 2]


def _loss(net: nn.Module, step: int, batch: int = 3, **options: Any) -> Tensor:
    seed = torch.Generator().manual_seed(step)
    tokens = torch.randint(16, (batch, 8), generator=seed, device="cpu")
    tokens = tokens.to(next(net.parameters()).device)
    logits = net(tokens, **options)
    return functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())


def _fresh(make: Make, seed: int = 1) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = Net()
    return net, make(net)


def _equal(a: Any, b: Any) -> bool:
    """The same structure, with tensors of the same kind, layout and bits."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return a == b


def _outcome(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return [p.detach() for p in net.parameters()], optimizer.state_dict()


def _train(
    make: Make,
    in_backward: bool,
    steps: int = STEPS,
    schedule: bool = True,
    autocast: bool = False,
) -> Any:
    """Trains with every second step leaving out the expert; returns all that came of it."""
    net, optimizer = _fresh(make)
    if in_backward:
        torch_lms.step_in_backward(optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15) if schedule else None
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        device = net.conv.weight.device.type
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = _loss(net, step, use_expert=step % 2 == 0)
        assert loss.isfinite()
        if optimizer.param_groups[0].get("maximize"):
            loss = -loss
        loss.backward()
        if in_backward:
            assert all(p.grad is None for p in net.parameters() if p in optimizer.state)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.detach())
    return losses, _outcome(net, optimizer)


def _made(name: str, **settings: Any) -> Make:
    def make(net: Net) -> torch.optim.Optimizer:
        params = _matrices(net) if name == "Muon" else _groups(net)
        return getattr(torch.optim, name)(params, **({"lr": 0.02} | settings))

    return make


OPTIMIZERS: dict[str, Make] = {
    f"{name}-{'-'.join(f'{k}={v}' for k, v in settings.items())}": _made(name, **settings)
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
    assert _equal(_train(OPTIMIZERS[name], True), _train(OPTIMIZERS[name], False))


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*OPTIMIZERS, "capturable"])
def test_same_bits_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    make = OPTIMIZERS.get(name) or _made("AdamW", capturable=True)
    with torch.device("cuda"):
        plain = _train(make, False, autocast=True)
        assert _equal(_train(make, True, autocast=True), plain)


@pytest.mark.parametrize("name", ["AdamW-fused=True-amsgrad=True", "Adafactor-", "Muon-"])
def test_same_bits_under_autocast(name: str) -> None:
    plain = _train(OPTIMIZERS[name], False, autocast=True)
    assert _equal(_train(OPTIMIZERS[name], True, autocast=True), plain)


def test_the_plain_run_depends_on_what_is_compared() -> None:
    """The comparison sees a schedule, a precision, and a weight decay that are missing."""
    make = OPTIMIZERS["AdamW-foreach=True"]
    plain = _train(make, False)
    assert not _equal(_train(make, False, schedule=False), plain)
    assert not _equal(_train(make, False, autocast=True), plain)
    assert not _equal(_train(_made("AdamW", foreach=True, weight_decay=0.02), False), plain)


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
        return _outcome(net, optimizer)

    plain = copy.deepcopy(run(False))
    with torch_lms.managed(
        device="cpu", limit=600_000, min_block=4096, plan=plan, plan_seconds=0.05
    ):
        assert _equal(run(True), plain)
        stats = torch_lms.memory_stats("cpu")
    assert stats["evictions"] > 0
    assert (stats["plan.steps"] > 0) == (plan == "now")


def test_gradients_are_freed_one_by_one() -> None:
    net, optimizer = _fresh(_made("Adam"))
    torch_lms.step_in_backward(optimizer)
    held = []
    for p in net.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda _: held.append(sum(q.grad is not None for q in net.parameters()))
            )
    _loss(net, 0).backward()
    assert held == [0] * len(held)
    assert len(held) == sum(p.requires_grad for p in net.parameters())


# Checkpoints.


@pytest.mark.parametrize("first", [True, False])
def test_checkpoints_go_from_one_to_the_other(first: bool) -> None:
    make = OPTIMIZERS["AdamW-fused=True-amsgrad=True"]

    def run(modes: list[bool]) -> Any:
        saved: Any = None
        for part, in_backward in enumerate(modes):
            net, optimizer = _fresh(make, seed=part + 1)
            if in_backward:
                torch_lms.step_in_backward(optimizer)
            if saved is not None:
                loaded = torch.load(io.BytesIO(saved))
                net.load_state_dict(loaded["net"])
                optimizer.load_state_dict(loaded["optimizer"])
            for step in range(5):
                optimizer.zero_grad()
                _loss(net, 5 * part + step).backward()
                optimizer.step()
            file = io.BytesIO()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
            saved = file.getvalue()
        return _outcome(net, optimizer)

    assert _equal(run([first, not first, first]), run([False, False, False]))


def test_copies_and_pickles_are_plain_optimizers() -> None:
    net, optimizer = _fresh(_made("Adam"))
    torch_lms.step_in_backward(optimizer)
    _loss(net, 0).backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save((net, optimizer), file)
    file.seek(0)
    for twin, its_optimizer in (
        copy.deepcopy((net, optimizer)),
        torch.load(file, weights_only=False),
    ):
        _loss(twin, 1).backward()
        before = copy.deepcopy(list(twin.parameters()))
        assert all(p.grad is not None for p in twin.parameters() if p.requires_grad)
        assert "step" not in vars(its_optimizer)
        its_optimizer.step()
        assert not _equal(list(twin.parameters()), before)


# Settings, schedulers, hooks and groups.


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_schedulers_see_the_steps(scheduler_first: bool) -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = _fresh(_made("SGD", momentum=0.9))

        def schedulers() -> Any:
            one = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
            return one, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        made = schedulers() if scheduler_first else None
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        made = made or schedulers()
        for step in range(8):
            optimizer.zero_grad()
            _loss(net, step).backward()
            optimizer.step()
            for scheduler in made:
                scheduler.step()
        return _outcome(net, optimizer)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _equal(run(True), run(False))


def test_a_scheduler_that_comes_too_early_is_still_warned_about() -> None:
    net, optimizer = _fresh(_made("SGD"))
    torch_lms.step_in_backward(optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    _loss(net, 0).backward()
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
            _loss(net, step).backward()
            if in_backward and step not in untold:
                groups = optimizer.param_groups
                assert all(p.grad is None for group in groups for p in group["params"])
            optimizer.step()
        return _outcome(net, optimizer)

    assert _equal(run(True), run(False))


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
        net, optimizer = _fresh(_made("Adam"))
        seen: list[Any] = []
        optimizer.register_step_post_hook(
            lambda *_: seen.append([p.detach().clone() for p in net.parameters()])
        )
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        for step in range(4):
            optimizer.zero_grad()
            _loss(net, step).backward()
            optimizer.step()
        return seen

    seen = run(True)
    assert len(seen) == 4
    assert _equal(seen, run(False))


def test_removing_it_restores_the_plain_optimizer() -> None:
    def run(parts: list[bool]) -> Any:
        net, optimizer = _fresh(_made("Adam", fused=True))
        scheduler = None
        for part, in_backward in enumerate(parts):
            handle = torch_lms.step_in_backward(optimizer) if in_backward else None
            # Wraps step() while it is ours.
            scheduler = scheduler or torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            for step in range(4):
                optimizer.zero_grad()
                _loss(net, 4 * part + step).backward()
                assert (net.conv.weight.grad is None) == in_backward
                optimizer.step()
                scheduler.step()
            if handle is not None:
                handle.remove()
                handle.remove()
                assert not any(p._post_accumulate_grad_hooks for p in net.parameters())
        return _outcome(net, optimizer)

    assert _equal(run([True, False, True]), run([False, False, False]))


def test_without_the_optimizer_nothing_is_updated() -> None:
    net, optimizer = _fresh(_made("Adam"))
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
    _loss(net, 0).backward()
    assert net.conv.weight.grad is not None
    assert _equal(list(net.parameters()), before)


# Several backward passes, and graphs of every kind.


def test_accumulated_gradients() -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = _fresh(_made("AdamW", foreach=True))
        handle = torch_lms.step_in_backward(optimizer) if in_backward else None
        for step in range(8):
            optimizer.zero_grad()
            for micro in range(3):
                last = micro == 2
                hold = handle.accumulate() if handle is not None and not last else nullcontext()
                with hold:
                    # The last one leaves the expert out: its gradient is still there at step().
                    (_loss(net, 3 * step + micro, use_expert=not last) / 3).backward()
            optimizer.step()
        return _outcome(net, optimizer)

    assert _equal(run(True), run(False))


def test_clipping_and_scaling_with_all_gradients_kept() -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = _fresh(_made("SGD", momentum=0.9, fused=True))
        handle = torch_lms.step_in_backward(optimizer) if in_backward else None
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for step in range(8):
            optimizer.zero_grad()
            with handle.accumulate() if handle is not None else nullcontext():
                loss = _loss(net, step)
                if step == 4:
                    loss = loss * float("inf")  # a step that the scaler skips
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), _outcome(net, optimizer)

    assert _equal(run(True), run(False))


def test_each_gradient_may_be_clipped_by_value_in_a_hook() -> None:
    clip = 1e-3

    def run(in_backward: bool) -> Any:
        net, optimizer = _fresh(_made("SGD", momentum=0.9))
        if in_backward:
            torch_lms.step_in_backward(optimizer)
            for p in net.parameters():
                if p.requires_grad:
                    p.register_hook(lambda grad: grad.clamp(-clip, clip))
        for step in range(4):
            optimizer.zero_grad()
            _loss(net, step).backward()
            if not in_backward:
                nn.utils.clip_grad_value_(net.parameters(), clip)
            optimizer.step()
        return _outcome(net, optimizer)

    assert _equal(run(True), run(False))


@pytest.mark.parametrize("settings", [{}, {"foreach": False}])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "SparseAdam"])
def test_sparse_gradients(name: str, settings: dict[str, Any]) -> None:
    if name == "SparseAdam":
        settings = {}

    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        tables = nn.ModuleList(nn.Embedding(32, 4, sparse=True) for _ in range(2))
        optimizer = getattr(torch.optim, name)(tables.parameters(), lr=0.1, **settings)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        for step in range(4):
            tokens = torch.tensor([step, 3, step, 7])
            optimizer.zero_grad()
            sum(table(tokens).square().sum() for table in tables).backward()
            assert (tables[0].weight.grad is None) == in_backward
            optimizer.step()
        return _outcome(tables, optimizer)

    assert _equal(run(True), run(False))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks(reentrant: bool) -> None:
    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        optimizer = torch.optim.Adam(layers.parameters(), lr=0.01, fused=True)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        x = torch.randn(5, 8, requires_grad=True)
        for _ in range(6):
            optimizer.zero_grad()
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=reentrant)
            y.square().sum().backward()
            optimizer.step()
        return _outcome(layers, optimizer)

    assert _equal(run(True), run(False))


def test_a_weight_that_is_shared_is_updated_once_all_its_gradients_are_in() -> None:
    """At several depths, and under checkpointing that is not reentrant."""
    updates = []

    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        shared = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(shared.parameters(), lr=0.05, momentum=0.9, fused=True)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
            shared.weight.register_post_accumulate_grad_hook(updates.append)
        for _ in range(5):
            optimizer.zero_grad()
            x = torch.ones(3, 6)
            for _ in range(3):
                x = checkpoint(lambda y: shared(y).sin(), shared(x).tanh(), use_reentrant=False)
            x.square().sum().backward()
            optimizer.step()
        return _outcome(shared, optimizer)

    assert _equal(run(True), run(False))
    assert len(updates) == 5


def test_compiled_modules() -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = _fresh(_made("Adam", foreach=True))
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        compiled = torch.compile(net, backend="aot_eager")
        for step in range(4):
            optimizer.zero_grad()
            _loss(compiled, step).backward()
            assert (net.conv.weight.grad is None) == in_backward
            optimizer.step()
        return _outcome(net, optimizer)

    assert _equal(run(True), run(False))
    torch.compiler.reset()


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
        net, optimizer = _fresh(lambda net: Halved(net.parameters(), lr=0.1, momentum=0.9))
        calls = []
        optimizer.register_step_post_hook(lambda *_: calls.append(0))
        if in_backward:
            torch_lms.step_in_backward(optimizer, assume_independent=True)
        for step in range(5):
            optimizer.zero_grad()
            _loss(net, step, use_expert=step % 2 == 0).backward()
            assert (net.conv.weight.grad is None) == in_backward
            optimizer.step()
        assert len(calls) >= 5
        return len(calls), _outcome(net, optimizer)

    torch.optim.SGD([torch.zeros(1)])  # PyTorch wraps SGD.step when the first one is made
    assert _equal(run(True), run(False))
