"""lab/bench/trainers.py: tiny models, on the CPU, with the trainers themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "ratio", "packages"),
    [
        ("trainer", "2", ["transformers", "accelerate"]),
        ("accumulation", "2", ["transformers", "accelerate"]),
        ("scaler", "2", ["transformers"]),
        ("sft", "1.5", ["transformers", "trl", "datasets"]),  # its loss wants 16 MiB at once
    ],
)
def test_planned_with_the_same_bits(
    case: str, ratio: str, packages: list[str], tmp_path: Path
) -> None:
    if missing := [name for name in packages if find_spec(name) is None]:
        pytest.skip(f"no {', '.join(missing)} here: make test-integrations")
    ran = subprocess.run(
        [sys.executable, ROOT / "lab/bench/trainers.py", "--tiny", "--device", "cpu",
         "--only", case, "--ratios", ratio, "--steps", "24", "--timed", "4",
         "--out", tmp_path / "rows.json"],
        capture_output=True, text=True, timeout=900,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python"), "LMS_PLAN": "now",
                          "LMS_PLAN_SECONDS": "0.1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    plain, under = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert plain["repeats"]
    assert under["same_bits"] is True, ran.stdout
    assert under["stats"]["bytes_out"] > 0 and under["planned"] > 0
