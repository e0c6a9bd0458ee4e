"""What LMS takes from the heap in a step like all those before: nothing, while everything fits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torch_lms
from torch_lms._library import library_path

LIBRARY = library_path().resolve().parent / "libmodel_cuda.so"


def test_steady_steps_take_nothing_from_the_heap() -> None:
    """Counted on the model of CUDA, by where in the library each came from."""
    if not LIBRARY.exists() or b"model_cuda_count_allocations" not in LIBRARY.read_bytes():
        pytest.skip("the model knows CUDA 13 alone, and this PyTorch is built for another, or none")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("allocations_program.py"))],
        env={
            **os.environ,
            "LD_PRELOAD": str(LIBRARY),
            "MODEL_CUDA": "costless",
            "PYTHONPATH": str(Path(torch_lms.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.splitlines()[0].startswith("evictions 0, "), done.stdout
    assert done.stdout.splitlines()[1] == "0 allocations", done.stdout
