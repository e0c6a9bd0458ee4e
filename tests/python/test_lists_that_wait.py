"""``lists_that_wait.py`` and its kin, in a process of their own for each device."""

from __future__ import annotations

import pytest
from stress.children import run_tests

pytestmark = pytest.mark.pinned

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@DEVICES
def test_lists_that_wait(device: str) -> None:
    """On the CPU, too, where operators over lists are else taken apart by PyTorch."""
    _run("lists_that_wait.py", device, "not alone")


def test_in_one_pass() -> None:
    """What waits on the same tensors runs as one operator; without a GPU, of the parts' own."""
    _run("lists_that_wait.py", "cpu", "not alone", TEST_LIST_PASSES="1")


@DEVICES
def test_random_passes(device: str) -> None:
    """Of all kinds of operators, numbers and types."""
    _run("passes_at_random.py", device, "", TEST_LIST_PASSES="1" if device == "cpu" else None)


@DEVICES
def test_lists_at_the_call(device: str) -> None:
    _run("lists_at_the_call.py", device, "not alone")


@pytest.mark.alone
@DEVICES
def test_what_a_plan_chooses(device: str) -> None:
    """By what this machine takes for copies and computation."""
    _run("lists_that_wait.py", device, "alone")


def _run(file: str, device: str, marks: str, **variables: str | None) -> None:
    given = {name: value for name, value in variables.items() if value is not None}
    run_tests(file, "-m", marks, TEST_WHOLE_LISTS="1", TEST_DEVICE=device, **given)
