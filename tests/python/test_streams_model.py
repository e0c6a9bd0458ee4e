"""Stream order without a GPU: ``streams_on_model.py``, on a model of CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_lms._library import library_path

pytestmark = pytest.mark.pinned

LIBRARY = library_path().resolve().parent / "libmodel_cuda.so"


def test_on_the_model() -> None:
    """A process in which the model is the CUDA runtime."""
    if (torch.version.cuda or "").partition(".")[0] != "13":
        pytest.skip(f"the model knows CUDA 13 alone; this PyTorch is for {torch.version.cuda}")
    assert b"model_cuda_races" in LIBRARY.read_bytes(), "ninja lms_model_cuda builds it"
    tests = Path(__file__).with_name("streams_on_model.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
