"""The CPU's tier in a real process whose system calls fail, and in one that is killed.

An error, or all bytes right; and a trainer that saves resumes as if nothing had been.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.pinned

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that has system calls fail."""
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = HERE / "faults_preload.cpp"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run([*command, "-ldl"], check=True)
    return library


def environment(library: Path) -> dict[str, str]:
    """For a process in which the library is preloaded."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(library), "LMS_VERIFY": "0"}


@pytest.mark.parametrize(
    ("setting", "stride"), [("lru", 11), ("stress", 97), ("drop", 499), ("in place", 29)]
)
def test_each_call_fails_once(preloaded: Path, tmp_path: Path, setting: str, stride: int) -> None:
    """Errors reach the program, which goes on; the bytes are those of a run without LMS."""
    program = [*forked.command(LD_PRELOAD=str(preloaded)), str(HERE / "faults_program.py")]
    done = subprocess.run(
        [*program, str(preloaded), setting, str(stride)],
        env={**environment(preloaded), "LMS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    steps = json.loads(done.stdout)["steps"]
    assert steps["calls"] > 100
    for kind, errors in steps["errors"].items():
        if kind == "short":
            assert errors == 0, (kind, steps)
        elif (kind, setting) == ("full", "in place"):
            pass  # operators read their operands in the file: no room is needed
        else:
            assert errors > 0, (kind, steps)


def test_a_killed_trainer_resumes(preloaded: Path, tmp_path: Path) -> None:
    """Killed before operators, and before system calls of evictions: the bits are the same."""
    files = tmp_path / "files"
    files.mkdir()
    program = [*forked.command(LD_PRELOAD=str(preloaded)), str(HERE / "faults_trainer.py")]
    done = subprocess.run(
        [*program, str(preloaded), str(tmp_path), "1"],
        env={**environment(preloaded), "LMS_DIR": str(files)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["kills"] >= 6, "they live too long"
    assert result["killed"] == [result["plain"]] * 6
    assert result["left"] == [], "a killed process leaves no file"
