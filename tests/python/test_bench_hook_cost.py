"""The benchmark harness where it runs the program that measures CPU time per operator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench import hook_cost, records  # noqa: E402

pytestmark = pytest.mark.pinned


def program(tmp_path, body: str) -> str:
    """A program that has its arguments in `given` and does `body`."""
    path = tmp_path / "program"
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n{body}\n"
    )
    path.chmod(0o755)
    return str(path)


WRITE = 'json.dump({"device": given["--device"], "costs": [given]}, open(given["--json"], "w"))'


def test_the_machine_and_the_commit_are_added(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS_COMMIT", "abc")
    out = tmp_path / "deep" / "result.json"
    arguments = ["--program", program(tmp_path, WRITE), "--out", str(out), "--samples", "7"]
    assert hook_cost.main(arguments) == 0
    result = json.loads(out.read_text())
    assert (result["device"], result["commit"]) == ("cpu", "abc")
    assert result["costs"][0]["--samples"] == "7"
    assert "--bytes" not in result["costs"][0]
    assert result["machine"]["torch"] == torch.__version__
    assert result["machine"]["cpu"] == records.machine("cpu")["cpu"]
    # Tables of training steps pass it over.
    assert records.read_files(out.parent) == {}


@pytest.mark.parametrize("body", ["sys.exit(3)", WRITE + "; sys.exit(3)"])
def test_a_program_that_fails_is_no_success(tmp_path, body):
    out = tmp_path / "result.json"
    arguments = ["--program", program(tmp_path, body), "--out", str(out)]
    assert hook_cost.main(arguments) == 3
    # What it has measured until then is kept.
    assert out.exists() == (body != "sys.exit(3)")
