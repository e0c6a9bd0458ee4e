"""Host memory that is full: what can be computed again makes room there for what cannot."""

from __future__ import annotations

import pytest
from on_model import run_on_gpu, run_on_model

PROGRAM = "host_full_program.py"


def test_on_the_model() -> None:
    assert int(run_on_model(PROGRAM, "counts")) >= 8


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    assert int(run_on_gpu(PROGRAM)) >= 8
