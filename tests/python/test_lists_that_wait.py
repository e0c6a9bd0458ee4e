"""``lists_that_wait.py``, in a process of its own for each device."""

from __future__ import annotations

import pytest
from stress.children import run_tests


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_lists_that_wait(device: str) -> None:
    """On the CPU, too, where operators over lists are else taken apart by PyTorch."""
    run_tests("lists_that_wait.py", TEST_WHOLE_LISTS="1", TEST_DEVICE=device)
