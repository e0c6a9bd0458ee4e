"""Host memory that is full: what can be computed again makes room there for what cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from on_model import run_on_model

PROGRAM = "host_full_program.py"


def test_on_the_model() -> None:
    assert int(run_on_model(PROGRAM, "counts")) >= 8


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name(PROGRAM))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= 8
