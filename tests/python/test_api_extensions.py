"""Functions of extensions that take tensors by pybind11, and use their memory unseen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import extension
import pytest
import torch
from stress.probe import state

import torch_lms
from torch_lms import _extensions

N = 5000


@pytest.fixture(scope="session")
def library() -> Path:
    return extension.build(cuda=False)


@pytest.fixture
def raw(library: Path) -> Iterator[ModuleType]:
    yield load(library)
    del sys.modules["lms_test_raw"]


def load(library: Path) -> ModuleType:
    module = sys.modules["lms_test_raw"] = extension.load(library)
    return module


@pytest.fixture(params=[True, "drop"], ids=["absent", "dropped"])
def stress(request: pytest.FixtureRequest) -> bool | str:
    return request.param


def managed(stress: bool | str):  # type: ignore[no-untyped-def]
    return torch_lms.managed(limit="256MiB", min_block=1, device="cpu", stress=stress)


def numbers(value: float) -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32) * value


def is_away(tensor: torch.Tensor) -> bool:
    return state(tensor) in ("absent", "dropped")


def test_arguments_come_and_leave_again(raw: ModuleType, stress: bool | str) -> None:
    with managed(stress):
        source, to = numbers(2), numbers(3)
        assert is_away(source) and is_away(to)
        raw.copy(to, source=source)
        made = raw.duplicate(to)
        assert is_away(to) and is_away(source)
        assert torch.equal(made, numbers(2)) and is_away(made)
        raw.copy_all([[made, to], (numbers(5), numbers(6))])
        assert is_away(made) and is_away(to)
        assert torch.equal(made, numbers(5)) and torch.equal(to, numbers(6))
        assert torch_lms.memory_stats("cpu")["kept.bytes.current"] == 0


def test_writes_are_no_surprise(raw: ModuleType) -> None:
    """Without being heard of they raise an error when what was dropped is computed again."""
    with managed("drop"):
        x = numbers(1)
        y = x * 2
        raw.copy(x, numbers(4))
        assert torch.equal(y, numbers(2)) and torch.equal(x, numbers(4))
        z = x * 3
        raw.copy(z, y)
        assert torch.equal(z, numbers(2))


def test_methods_constructors_and_inner_modules(raw: ModuleType, stress: bool | str) -> None:
    with managed(stress):
        x = numbers(7)
        holder = raw.Holder(x)
        to = numbers(1)
        holder.write(to)
        assert torch.equal(to, x)
        assert torch.equal(raw.Holder.twin(x), x) and torch.equal(raw.inner.duplicate(x), x)
        assert raw.answer() == 42
    assert torch.equal(raw.Holder.twin(x), x)


def test_objects_that_hold_tensors(raw: ModuleType, stress: bool | str) -> None:
    """What an object has kept from an earlier call stays where it is."""
    with managed(stress):
        x, other = numbers(7), numbers(8)
        window = raw.Window(x)
        raw.copy(other, source=x)
        assert state(x) == "kept" and is_away(other), "only what is held stays"
        assert torch.equal(window.read(), numbers(7))
        window.fill()
        assert torch.equal(x, torch.full_like(x, 3))


def test_what_is_made_from_nothing(raw: ModuleType, stress: bool | str) -> None:
    """It takes no tensor, and is not to be computed again: it is written unseen."""
    with managed(stress):
        made = raw.counted(N)
        assert is_away(made)
        later = made * 2  # what Python does next is again
        assert torch.equal(made, numbers(1) + 1)
        assert torch.equal(later, numbers(2) + 2)
        if stress == "drop":
            assert state(later) == "dropped"


def test_an_object_sees_updates_that_wait(raw: ModuleType) -> None:
    with torch_lms.managed(min_block=1, device="cpu", stress=True, deferred_updates="all"):
        x, one = numbers(7) + 0, numbers(0) + 1
        window = raw.Window(x)
        x.add_(one)
        assert torch.equal(window.read(), numbers(7) + 1)


def test_virtual_functions(raw: ModuleType, stress: bool | str) -> None:
    class Same(raw.Virtual):  # type: ignore[name-defined]
        pass

    class Other(raw.Virtual):  # type: ignore[name-defined]
        def run(self, tensor: torch.Tensor) -> torch.Tensor:
            return super().run(tensor) * 2

    with managed(stress):
        x = numbers(3)
        for kind, factor in ((raw.Virtual, 1), (Same, 1), (Other, 2)):
            assert torch.equal(kind().run(x), numbers(3) * factor)
            assert torch.equal(kind().call(x), numbers(3) * factor)


def test_names_in_other_modules(raw: ModuleType, stress: bool | str) -> None:
    user = ModuleType("lms_test_user")
    user.duplicate = original = raw.duplicate  # type: ignore[attr-defined]
    sys.modules["lms_test_user"] = user
    try:
        with managed(stress):
            assert user.duplicate is raw.duplicate is not original
            assert user.duplicate.__name__ == "duplicate"
            assert torch.equal(user.duplicate(numbers(3)), numbers(3))
        assert user.duplicate is raw.duplicate is original
    finally:
        del sys.modules["lms_test_user"]


def test_one_that_is_imported_later(library: Path, stress: bool | str) -> None:
    with managed(stress):
        raw = load(library)
        x = numbers(2)
        assert torch.equal(raw.duplicate(x), x) and is_away(x)
        wrapper = raw.duplicate
    assert raw.duplicate is not wrapper
    assert torch.equal(wrapper(numbers(2)), x)
    del sys.modules["lms_test_raw"]


def test_errors_pass(raw: ModuleType, stress: bool | str) -> None:
    with managed(stress):
        x = numbers(2)
        with pytest.raises(ValueError, match="as it should"):
            raw.fails(x)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            raw.copy(x)
        raw.copy(x, numbers(3))
        assert is_away(x)
        assert torch.equal(x, numbers(3))


class Named(torch.Tensor):
    """A subclass that hears of functions of PyTorch's."""

    heard = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.heard += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_weights_and_gradients(raw: ModuleType, stress: bool | str) -> None:
    with managed(stress):
        weight = torch.nn.Parameter(numbers(2))
        copied = raw.duplicate(weight)
        assert not copied.requires_grad
        (weight * copied).sum().backward()
        assert torch.equal(weight.grad, numbers(2))
        raw.copy(weight.grad, numbers(9))
        assert torch.equal(weight.grad, numbers(9)) and weight.grad_fn is None
        named = numbers(3).as_subclass(Named)
        Named.heard = 0
        copied = raw.duplicate(named)
        assert Named.heard == 0
        assert torch.equal(copied, numbers(3))
        assert torch.equal(raw.duplicate(numbers(3).view(50, 100)), numbers(3).view(50, 100))


@pytest.mark.parametrize("composite", [False, True], ids=["function", "composite"])
def test_backward_passes_of_their_own(raw: ModuleType, stress: bool | str, composite: bool) -> None:
    """What a C++ node of autograd's has saved, it uses unseen."""
    with managed(stress):
        x = (numbers(2) * 2).requires_grad_()
        y = x * 1
        z = (torch.ops.lms_test_raw.twice if composite else raw.twice)(y)
        assert state(y) == "kept" and not is_away(z)
        assert torch.equal(z, y)
        z.sum().backward()
        assert torch.equal(x.grad, numbers(4))
        del y, z
        assert torch_lms.memory_stats("cpu")["kept.bytes.current"] == 0
        with torch.no_grad():
            y = x * 1
            z = (torch.ops.lms_test_raw.twice if composite else raw.twice)(y)
        assert is_away(y) and torch.equal(z, numbers(4))
    assert torch.equal(torch.ops.lms_test_raw.twice(numbers(1)), numbers(1))


def test_what_it_is_not_for(raw: ModuleType) -> None:
    assert _extensions._takes_tensors(raw)
    for module in (torch._C, sys, torch_lms, pytest):
        assert not _extensions._takes_tensors(module)
    with pytest.raises(RuntimeError, match="by LMS alone"):
        torch.ops.lms_extension.call([numbers(1)])


def test_plans_know_of_it(raw: ModuleType) -> None:
    """Loops with such calls are planned, with equal bits."""

    def train(steps: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights = [torch.randn(256, 256, requires_grad=True) for _ in range(8)]
        for _ in range(steps):
            x = torch.ones(256, 256)
            for weight in weights:
                x = torch.tanh(x @ weight) + 0.1
            x.sum().backward()
            with torch.no_grad():
                for weight in weights:
                    raw.copy(weight, raw.duplicate(weight - 1e-3 * weight.grad))
                    weight.grad = None
        return weights

    plain = train(12)
    settings = {"limit": "4MiB", "min_block": "4KiB", "device": "cpu"}
    with torch_lms.managed(**settings, plan="now", plan_seconds=1):
        ours = train(12)
        stats = torch_lms.memory_stats("cpu")
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert stats["plan.steps"] > 0 and stats["evictions"] > 0


def test_compiled_functions_call_it(raw: ModuleType, stress: bool | str) -> None:
    """After a graph break the wrapper's own frame is not compiled: it would seem to be traced."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: raw.duplicate(x * 2) + 1, backend="eager")
    with managed(stress):
        x = numbers(1) * 1
        for _ in range(2):
            assert torch.equal(compiled(x), numbers(2) + 1)
        assert is_away(x)


def test_names_taken_while_it_was_on(raw: ModuleType, stress: bool | str) -> None:
    user = ModuleType("lms_test_user")
    sys.modules["lms_test_user"] = user
    try:
        with managed(stress):
            user.duplicate = raw.duplicate  # type: ignore[attr-defined]
        with managed(stress):
            x = numbers(3) * 1
            assert user.duplicate is raw.duplicate
            assert torch.equal(user.duplicate(x), x) and is_away(x)
    finally:
        del sys.modules["lms_test_user"]
