"""``lists_that_wait.py``, in a process of its own for each device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_lists_that_wait(device: str) -> None:
    """On the CPU, too, where operators over lists are else taken apart by PyTorch."""
    tests = Path(__file__).with_name("lists_that_wait.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "TEST_WHOLE_LISTS": "1", "TEST_DEVICE": device},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
