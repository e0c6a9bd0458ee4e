"""Programs of others under limits, in a tiny size that needs none of their packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench import programs  # noqa: E402

pytestmark = pytest.mark.pinned


@pytest.mark.usefixtures("forked_python")
def test_a_program_at_the_drawn_and_at_the_smallest_limit(tmp_path: Path) -> None:
    out = tmp_path / "programs.json"
    words = ["--tiny", "--device", "cpu", "--only", "lstm", "--steps", "2", "--plan-seconds", "0.1"]
    assert programs.main([*words, "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["plain"]["repeats"]
    assert row["drawn"]["same_bits"]
    assert row["smallest"]["same_bits"]
    assert row["smallest"]["limit"] < row["drawn"]["limit"] < row["plain"]["peak"]


@pytest.mark.usefixtures("forked_python")
def test_a_loop_whose_steps_differ_with_plans_and_without(tmp_path: Path) -> None:
    out = tmp_path / "loops.json"
    words = ["--suite", "loops", "--only", "turns_of_two", "--tiny", "--device", "cpu"]
    assert programs.main([*words, "--steps", "8", "--plan-seconds", "0.1", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    for mode in ("half", "reactive"):
        made = row[mode]
        assert made["error"] is None and made["same_bits"], mode
        assert made["limit"] == row["plain"]["peak"] // 2
        assert len(made["ms_all"]) == len(made["plain_ms_all"]) == 16
        assert len(made["planned_all"]) == len(made["host_peak_all"]) == 16
        last = sorted(made["ms_all"][programs.FIRST :])
        assert made["median_ms"] == (last[2] + last[3]) / 2
    assert row["half"]["planned_all"] == sorted(row["half"]["planned_all"])
    assert row["reactive"]["planned_all"] == [0] * 16


def test_every_loop_of_the_suite_is_a_program() -> None:
    assert set(programs.LOOPS) <= programs.PROGRAMS.keys()
