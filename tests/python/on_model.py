"""Runs programs of this folder on the model of CUDA, where the host does all it does, or a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest

import torch_lms
from torch_lms._library import library_path

MODEL = library_path().resolve().parent / "libmodel_cuda.so"


def run_on_model(program: str, *words: str, costless: bool = True) -> str:
    """What the program printed; skips the test where there is no model. A run that is costless
    moves no bytes."""
    if not MODEL.exists() or b"model_cuda_count_allocations" not in MODEL.read_bytes():
        pytest.skip("the model knows CUDA 13 alone, and this PyTorch is built for another, or none")
    way = {"MODEL_CUDA": "costless"} if costless else {}
    start = forked.command(LD_PRELOAD=str(MODEL), **way)
    done = subprocess.run(
        [*start, "-W", "ignore", str(Path(__file__).with_name(program)), *words],
        env={
            **os.environ,
            "LD_PRELOAD": str(MODEL),
            **way,
            "PYTHONPATH": str(Path(torch_lms.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def run_on_gpu(program: str) -> str:
    """What the program printed, in a process of its own, on the GPU that there is."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name(program))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
