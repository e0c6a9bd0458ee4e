"""Shared by all Python tests: the package from this tree, a clean environment, nothing left on."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

# Threads that have nothing to do sleep: whoever spins takes the processor from other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # there are as many processes of tests as processors
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# The kernels of oneDNN for AMX take many times the scratch memory of the others: limits that suit
# one machine would not suit the next.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import forked
import torch

import torch_lms

KEPT_VARIABLES = ("LMS_LIBRARY", "LMS_TORCH_DIR", "LMS_DIR")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "pinned: says nothing of a PyTorch, or of the pinned alone")
    config.addinivalue_line("markers", "slow: takes more than a few seconds")
    config.addinivalue_line("markers", "cpu_only: of a module for several devices, one for the CPU")


def _of_another_device(item: pytest.Item) -> bool:
    return "cpu_only" in item.keywords and item.callspec.params["device"] != "cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _of_another_device(item)]
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def pytest_collection_finish() -> None:
    """What is there by now stays, and need not be looked through again: it would take a third of a
    second each time that a test, or what it tests, collects garbage, and many do."""
    _leave_out_what_is_imported()


_modules = 0


def _leave_out_what_is_imported() -> None:
    global _modules
    gc.collect()
    gc.freeze()
    _modules = len(sys.modules)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread computes: tiny steps lose more to waiting for others, which also change bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def forked_python(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is started by ``sys.executable`` is forked, and has imported PyTorch already."""
    path = tmp_path_factory.mktemp("forked") / "python"
    monkeypatch.setattr(sys, "executable", forked.executable(path))


@pytest.fixture(autouse=True)
def clean_slate(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """No settings and no plans from outside, and everything off again after the test.

    Of the defaults two are others without a GPU: every block that leaves without a copy is
    compared with the copy that is there, so that an undeclared write of an operator is an error at
    once; and nobody waits two seconds for a better plan.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in list(os.environ):
        if name.startswith("LMS_") and name not in KEPT_VARIABLES:
            monkeypatch.delenv(name)
    if "gpu" not in request.keywords:
        monkeypatch.setenv("LMS_VERIFY", "1")
        monkeypatch.setenv("LMS_PLAN_SECONDS", "0.1")
    elif torch.cuda.is_initialized():
        # Workspaces of former tests lie in segments that could not be given back.
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    yield
    torch_lms.disable()
    if len(sys.modules) > _modules + 100:  # torch.compile's, for one
        _leave_out_what_is_imported()


@pytest.fixture
def stress() -> Iterator[None]:
    """The CPU is managed, and every block leaves after every operator."""
    with torch_lms.managed(limit="256MiB", min_block=1, device="cpu", stress=True):
        yield


@pytest.fixture
def fake_lms(monkeypatch):
    """The benchmark harness finds a double of the package, which plans when it is told to."""
    from bench_support import FakeLms

    fake = FakeLms()
    monkeypatch.setattr("bench.methods._lms", lambda: fake)
    return fake
