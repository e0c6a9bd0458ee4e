"""Stream order without a GPU: ``streams_on_model.py``, on a model of CUDA."""

from __future__ import annotations

import pytest
import torch
from stress.children import run_tests

from torch_lms._library import library_path

pytestmark = pytest.mark.pinned

LIBRARY = library_path().resolve().parent / "libmodel_cuda.so"


def run_on_the_model(*arguments: str) -> None:
    """In a process in which the model is the CUDA runtime."""
    if (torch.version.cuda or "").partition(".")[0] != "13":
        pytest.skip(f"the model knows CUDA 13 alone; this PyTorch is for {torch.version.cuda}")
    assert b"model_cuda_races" in LIBRARY.read_bytes(), "ninja lms_model_cuda builds it"
    run_tests("streams_on_model.py", *arguments, LD_PRELOAD=str(LIBRARY))


def test_on_the_model() -> None:
    """All of them."""
    run_on_the_model()


def test_the_first_other_stream() -> None:
    """What has run late is not noted before there is another stream: its first use waits."""
    run_on_the_model("-k", "test_program_that_waits and all-arena-waited_for_too_early")
