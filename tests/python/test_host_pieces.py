"""Host memory that is free in pieces: what lies there moves, and one piece comes of them."""

from __future__ import annotations

import pytest
from on_model import run_on_gpu, run_on_model

PROGRAM = "host_pieces_program.py"


def test_a_large_tensor_leaves_into_pieces_on_the_model() -> None:
    assert int(run_on_model(PROGRAM, costless=False)) > 0


@pytest.mark.gpu
def test_a_large_tensor_leaves_into_pieces() -> None:
    assert int(run_on_gpu(PROGRAM)) > 0
