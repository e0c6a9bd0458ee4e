"""Loops of every shape under a plan: the same bits as a plain run, whatever the plan believes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_lms

WIDTH = 64
LIMIT = 1_300_000


class Net(nn.Module):
    """Layers in a row, each of which makes activations of its batch's size."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.extra = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, branch: bool = False) -> Tensor:
        for layer in self.layers:
            x = x + self.drop(functional.gelu(layer(x)))
        return self.extra(x) if branch else x


Loop = Callable[[], Iterator[Tensor]]


def _model() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = Net()
    return net, torch.optim.Adam(net.parameters(), lr=1e-3)


def _step(net: Net, optimizer: torch.optim.Optimizer, batch: int, branch: bool = False) -> Tensor:
    optimizer.zero_grad()
    loss = net(torch.randn(batch, WIDTH), branch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def steady(steps: int = 20) -> Iterator[Tensor]:
    net, optimizer = _model()
    for _ in range(steps):
        yield _step(net, optimizer, 256)


def shapes_change() -> Iterator[Tensor]:
    net, optimizer = _model()
    for step in range(36):
        yield _step(net, optimizer, 256 if step // 6 % 2 == 0 else 224)


def last_batch_is_smaller() -> Iterator[Tensor]:
    net, optimizer = _model()
    for step in range(30):
        yield _step(net, optimizer, 96 if step % 10 == 9 else 256)


def random_branch() -> Iterator[Tensor]:
    net, optimizer = _model()
    dice = random.Random(7)
    for _ in range(30):
        yield _step(net, optimizer, 256, dice.random() < 0.5)


def validation_between_epochs() -> Iterator[Tensor]:
    net, optimizer = _model()
    for _ in range(4):
        net.train()
        for _ in range(8):
            yield _step(net, optimizer, 256)
        net.eval()
        with torch.no_grad():
            for _ in range(3):
                yield net(torch.randn(512, WIDTH)).square().mean()


def gradients_accumulate() -> Iterator[Tensor]:
    net, optimizer = _model()
    for _ in range(14):
        optimizer.zero_grad()
        for _ in range(3):
            loss = net(torch.randn(256, WIDTH)).square().mean()
            loss.backward()
            yield loss.detach()
        optimizer.step()


def two_models() -> Iterator[Tensor]:
    one, other = _model(), _model()
    for _ in range(16):
        yield _step(*one, 256)
        yield _step(*other, 192)


def batches_made_ahead() -> Iterator[Tensor]:
    net, optimizer = _model()
    ahead = torch.randn(256, WIDTH)
    for _ in range(20):
        batch, ahead = ahead, torch.randn(256, WIDTH)
        optimizer.zero_grad(set_to_none=False)
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def exception_in_the_middle() -> Iterator[Tensor]:
    net, optimizer = _model()
    for step in range(24):
        if step % 8 == 7:
            with pytest.raises(RuntimeError, match="mat1 and mat2"):
                net.extra(net(torch.randn(256, WIDTH))[:, 1:])
        yield _step(net, optimizer, 256)


LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        steady,
        shapes_change,
        last_batch_is_smaller,
        random_branch,
        validation_between_epochs,
        gradients_accumulate,
        two_models,
        batches_made_ahead,
        exception_in_the_middle,
    )
}
FOLLOWED = {"steady", "shapes_change", "gradients_accumulate", "two_models", "batches_made_ahead"}


def _run(loop: Loop) -> list[float]:
    return [float(loss) for loss in loop()]


@pytest.mark.parametrize("name", LOOPS)
def test_same_bits_under_plans(name: str) -> None:
    plain = _run(LOOPS[name])
    with torch_lms.managed(
        device="cpu",
        limit=LIMIT,
        min_block=4096,
        plan="now",
        plan_seconds=0.05,
        verify=name == "steady",
    ):
        planned = _run(LOOPS[name])
        stats = torch_lms.memory_stats("cpu")
    assert planned == plain
    assert stats["evictions"] > 0
    if name in FOLLOWED:
        assert stats["plan.steps"] > 0, dict(stats)


def test_plans_made_beside_the_training_change_nothing() -> None:
    plain = _run(lambda: steady(28))
    with torch_lms.managed(device="cpu", limit=LIMIT, min_block=4096, plan="on", plan_seconds=0.05):
        losses = []
        for step, loss in enumerate(steady(28)):
            losses.append(float(loss))
            if step == 10:
                torch_lms.wait_for_plan("cpu")
        stats = torch_lms.memory_stats("cpu")
    assert losses == plain
    assert stats["plan.steps"] > 0


def test_off_means_that_nothing_is_learnt() -> None:
    with torch_lms.managed(device="cpu", limit=LIMIT, min_block=4096, plan="off"):
        _run(steady)
        stats = torch_lms.memory_stats("cpu")
    assert stats["evictions"] > 0
    assert stats["plan.shapes"] == 0


def test_the_users_hint_marks_steps() -> None:
    plain = _run(steady)
    with torch_lms.managed(
        device="cpu", limit=LIMIT, min_block=4096, plan="now", plan_seconds=0.05
    ):
        losses = []
        for loss in steady():
            losses.append(float(loss))
            torch_lms.step()
        stats = torch_lms.memory_stats("cpu")
    assert losses == plain
    assert stats["plan.steps"] > 0


def test_a_learnt_step_can_be_saved(tmp_path) -> None:
    path = tmp_path / "step.json.gz"
    with torch_lms.managed(
        device="cpu", limit=LIMIT, min_block=4096, plan="now", plan_seconds=0.05
    ):
        with pytest.raises(RuntimeError, match="no step is known"):
            torch_lms.save_trace(str(path))
        _run(steady)
        torch_lms.save_trace(str(path))
    assert path.read_bytes()[:2] == b"\x1f\x8b"
