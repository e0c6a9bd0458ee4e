"""Traps: packages of AOTInductor, whose kernels see nothing but raw pointers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from stress import harness
from stress.probe import same, state

SHAPE = (64, 96)


class Counter(torch.nn.Module):
    """Writes an input and a buffer, and has a constant."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.register_buffer("total", torch.zeros(SHAPE))
        self.weight = torch.nn.Parameter(torch.randn(96, 96, generator=generator))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        self.total.add_(x)
        return self.total.relu() + x @ self.weight


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compiled in plain PyTorch."""
    path = tmp_path_factory.mktemp("package") / "counter.pt2"
    with torch.no_grad():
        exported = torch.export.export(Counter(), tuple(inputs()))
        return str(torch._inductor.aoti_compile_and_package(exported, package_path=str(path)))


@pytest.fixture
def library(package: str, tmp_path: Path) -> str:
    """The shared library within the package."""
    import zipfile

    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path)
    return str(next(tmp_path.rglob("*.so")))


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(*SHAPE, generator=generator) for _ in range(2)]


Run = Callable[..., torch.Tensor]


def by_package(package: str, _: str) -> Run:
    return torch._inductor.aoti_load_package(package)


def by_loader(package: str, _: str) -> Run:
    loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
    return lambda *tensors: loader.run(list(tensors))[0]


def by_runner(_: str, library: str) -> Run:
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
    return lambda *tensors: runner.run(list(tensors))[0]


WAYS = {"package": by_package, "loader": by_loader, "runner": by_runner}


def steps(run: Run, check: Callable[[torch.Tensor], None] = lambda x: None) -> list[torch.Tensor]:
    x, y = (tensor * 1 for tensor in inputs())
    out = []
    for _ in range(3):
        check(x)
        out.append(run(x, y))
        y = torch.tanh(y + out[-1] * x)
    return [x * 1, y * 1, *out]


@pytest.fixture(params=["clean", "stress", "drop"])
def how(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_writes_of_a_package(package: str, library: str, way: str, how: str) -> None:
    """What a package writes stays, in blocks that were clean, absent or dropped before."""

    def make_clean(x: torch.Tensor) -> None:
        if how != "clean":
            return
        assert torch.ops.lms.evict(x)
        x.sum()
        assert torch.ops.lms.state(x) == "resident"

    def leave(run: Run) -> Run:
        def run_and_leave(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            result = run(x, y)
            assert torch.ops.lms.evict(x)
            return result

        return run_and_leave if how == "clean" else run

    expected = steps(WAYS[way](package, library))
    stress = {"clean": False, "stress": True, "drop": "drop"}[how]
    with harness.managed("cpu", stress=stress, min_block=1):
        run = WAYS[way](package, library)
        got = steps(leave(run), make_clean)
        assert all(same(a, b) for a, b in zip(got, expected, strict=True))
        assert all(state(tensor) != "kept" for tensor in got), "a package is done with its inputs"


@pytest.mark.slow
@pytest.mark.parametrize("user_managed", [False, True])
def test_constants_of_a_package(package: str, user_managed: bool) -> None:
    """Constants are copied, or, if they are the user's, used where they lie from then on."""

    def run() -> list[torch.Tensor]:
        model = torch._inductor.aoti_load_package(package)
        weight = torch.eye(96) * 2
        constants = {"total": torch.full(SHAPE, 0.5) * 3, "weight": weight}
        model.load_constants(constants, check_full_update=True, user_managed=user_managed)
        out = steps(model)
        weight.mul_(3)
        out += [*steps(model), constants["total"] * 1]
        for constant in constants.values():  # of the user's, PyTorch never lets go
            constant.untyped_storage().resize_(0)
        return out

    expected = run()
    for stress in (True, "drop"):
        with harness.managed("cpu", stress=stress, min_block=1):
            assert all(same(a, b) for a, b in zip(run(), expected, strict=True))
