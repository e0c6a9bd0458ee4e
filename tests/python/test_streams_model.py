"""Stream order without a GPU: ``streams_on_model.py``, on a model of CUDA."""

from __future__ import annotations

import pytest
import torch
from stress.children import run_tests

from torch_lms._library import library_path

pytestmark = pytest.mark.pinned

LIBRARY = library_path().resolve().parent / "libmodel_cuda.so"


def test_on_the_model() -> None:
    """A process in which the model is the CUDA runtime."""
    if (torch.version.cuda or "").partition(".")[0] != "13":
        pytest.skip(f"the model knows CUDA 13 alone; this PyTorch is for {torch.version.cuda}")
    assert b"model_cuda_races" in LIBRARY.read_bytes(), "ninja lms_model_cuda builds it"
    run_tests("streams_on_model.py", LD_PRELOAD=str(LIBRARY))
