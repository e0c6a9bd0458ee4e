"""Extensions that use the memory of CUDA tensors unseen."""

from __future__ import annotations

import extensions_on_model
import pytest
from on_model import run_on_model


@pytest.mark.slow
def test_on_the_model() -> None:
    """What such a function wrote to a clean block was lost when it left."""
    run_on_model("extensions_on_model.py", "bytes", costless=False)
    run_on_model("extensions_on_model.py", "plans")


@pytest.mark.slow
def test_one_of_two_devices_is_let_go() -> None:
    """Composite operators are of no device: one hook has them all, and hands them on."""
    run_on_model("two_devices_on_model.py", costless=False)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    extensions_on_model.main()
