"""The benchmark of several GPUs, on two processes over gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import pytest
from stress import harness

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench import ranks  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.pinned]


@pytest.fixture(autouse=True)
def forked_ranks(tmp_path_factory, monkeypatch):
    """Processes that have imported PyTorch already."""
    path = tmp_path_factory.mktemp("forked") / "python"
    monkeypatch.setattr(sys, "executable", forked.executable(path, OMP_NUM_THREADS="1"))


_TINY = ["--device", "cpu", "--tiny", "--plan-seconds", "0.2"]


def _rows(out: Path, *arguments: str) -> tuple[int, list[dict]]:
    harness.lms()
    status = ranks.main([*_TINY, "--out", str(out), *arguments])
    return status, json.loads(out.read_text())["rows"]


def test_programs_run_plainly_and_under_lms(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names = "resnet50_ddp,llama_split,llama_fsdp_offloads"
    status, rows = _rows(tmp_path / "out.json", "--only", names, "--steps", "16")
    assert status == 0
    assert "3 programs; failed: none; wrong: none" in capsys.readouterr().out
    for row in rows[:2]:
        assert row["error"] is None
        assert row["repeats"]
        assert row["same_bits"]
        assert row["bytes_out"] > 0
        assert [one["rank"] for one in row["ranks"]] == [0, 1]
        for one in row["ranks"]:
            assert one["lms"]["limit"] == one["plain"]["allocated_peak"] // 2
            assert len(one["lms"]["losses"]) == 16
    first, second = (row["losses"] for row in (one["plain"] for one in rows[0]["ranks"]))
    assert first != second, "each rank has data of its own"
    assert rows[2]["skipped"] == "CPUOffloadPolicy needs GPUs"


def test_a_program_that_is_not_done_in_time_says_where_it_was(tmp_path):
    words = ("--only", "llama_ddp", "--timeout", "9", "--steps", "9999")
    status, (row,) = _rows(tmp_path / "out.json", *words)
    assert status == 0, "nothing was compared"
    assert row["error"] == "not done after 9 s"
    assert row["seconds"] < 15
    for one in row["ranks"]:
        assert 'File "' in one["stacks"], "wherever it was"


def test_where_a_rank_fails_the_others_are_ended(tmp_path):
    arguments = ("--only", "llama_ddp", "--ratio", "50", "--steps", "9")
    status, (row,) = _rows(tmp_path / "out.json", *arguments)
    assert status == 0
    assert row["error"].startswith("OutOfMemoryError: LMS: out of memory")
    assert row["seconds"] < 40
