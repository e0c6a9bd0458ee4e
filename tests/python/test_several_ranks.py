"""Several processes over gloo: data parallel and sharded training under LMS, bit by bit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from ranks_program import COUNTS, PLANNED, PROGRAMS
from stress import harness

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.slow


def _torchrun(ranks: int, folder: Path, what: str, seconds: float) -> tuple[int, str]:
    """Exit status and output of the program on so many ranks."""
    harness.lms()
    rank = forked.executable(folder / "python", OMP_NUM_THREADS="1")
    done = subprocess.run(
        [*forked.command(), "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={ranks}", str(HERE / "ranks_program.py"), str(folder), what],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
             "OMP_NUM_THREADS": "1", "PYTHON_EXEC": rank},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("ranks", "deferred", "which"),
    [
        (2, "auto", "all"),
        pytest.param(4, "auto", "more", marks=pytest.mark.pinned),
        pytest.param(2, "all", "updates", marks=pytest.mark.pinned),
        pytest.param(2, "auto", "planned", marks=pytest.mark.pinned),
    ],
)
def test_bits_of_every_rank_are_those_of_plain_pytorch(
    ranks: int, deferred: str, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMS_DEFERRED_UPDATES", deferred)
    status, output = _torchrun(ranks, tmp_path, which, 600)
    lines = re.findall(r"rank (\d) (\w+) (\w+): (\w+), [\w.]+ (\w+)", output)
    assert status == 0, output[-4000:]
    assert {line[:3] for line in lines} == {
        (str(rank), program.__name__, what)
        for rank in range(ranks)
        for program in PROGRAMS[which]
        for what in (PLANNED if which == "planned" else COUNTS)
    }
    for line in lines:
        assert line[3] == "same", line
        assert line[4] == "True", f"nothing left, or no plan was followed: {line}"


@pytest.mark.parametrize(("what", "says"), [("short", "out of memory"), ("dies", "SIGKILL")])
def test_where_one_rank_fails_all_end(what: str, says: str, tmp_path: Path) -> None:
    """An error everywhere, and soon; never a hang."""
    begun = time.monotonic()
    status, output = _torchrun(2, tmp_path, what, 120)
    assert status != 0
    assert says in output
    assert time.monotonic() - begun < 60
