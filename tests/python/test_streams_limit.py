"""The limit where PyTorch's allocator keeps free memory for every stream by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torch_lms
from torch_lms._library import library_path

LIBRARY = library_path().resolve().parent / "libmodel_cuda.so"


@pytest.mark.parametrize("words", [["1"], ["2"], ["1", "kept"]])
def test_many_streams_stay_below_the_limit(words: list[str]) -> None:
    """On the model of CUDA: what other streams hold free goes before the limit is passed, and
    nothing runs out of memory for it."""
    if not LIBRARY.exists() or b"model_cuda_count_allocations" not in LIBRARY.read_bytes():
        pytest.skip("the model knows CUDA 13 alone, and this PyTorch is built for another, or none")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("several_streams_program.py")), *words],
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
    most, limit = map(int, done.stdout.split(" of "))
    assert most <= limit
