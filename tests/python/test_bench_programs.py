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
