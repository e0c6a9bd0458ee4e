"""The doctor runs, in both forms, and its exit code tells whether the self-test passed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import torch

from torch_lms import doctor

PACKAGES = str(Path(__file__).resolve().parents[2] / "python")


def run(
    *arguments: str, start: list[str] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": PACKAGES, **variables}
    return subprocess.run(
        [*(start or forked.command()), "-m", "torch_lms", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_text(tmp_path: Path) -> None:
    """Without NumPy, as a new environment has PyTorch."""
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "numpy.py").write_text("raise ModuleNotFoundError('no NumPy here')")
    done = run(
        *("--device", "cpu", "--directory", str(tmp_path)),
        start=[sys.executable],
        PYTHONPATH=os.pathsep.join([str(missing), PACKAGES]),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-test passed" in done.stdout
    assert torch.__version__ in done.stdout and str(tmp_path) in done.stdout


def test_json(tmp_path: Path) -> None:
    done = run("--json", LMS_DEVICE="cpu", LMS_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["self_test"]["passed"] and report["self_test"]["bit_identical"]
    assert report["self_test"]["evictions"] > 0 and report["self_test"]["page_ins"] > 0
    assert report["device"]["name"] == "cpu" and report["device"]["memory"] > 0
    assert report["disk"]["directory"] == str(tmp_path)
    assert report["disk"]["write_gb_s"] > 0 and report["disk"]["read_gb_s"] > 0
    assert list(tmp_path.iterdir()) == []  # it cleans up
    assert set(report["host"]) == {"processors", "memory", "available", "group_limit"}
    assert report["supported"]["cpu"] is True


def test_a_missing_library_is_a_failure() -> None:
    done = run("--json", "--device", "cpu", LMS_LIBRARY="/no/such/library.so")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert "/no/such/library.so" in report["self_test"]["error"]


def test_bad_settings() -> None:
    done = run(LMS_LIMITS="3")
    assert done.returncode == 2
    assert "did you mean LMS_LIMIT" in done.stderr


def test_wrong_results_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    results = iter([([b"1"], [b"2"]), ([b"1"], [b"3"])])
    monkeypatch.setattr(doctor, "_train", lambda device: next(results))
    monkeypatch.setattr(doctor, "disk_facts", lambda path: {"file_system": "ext4", "direct": True})
    assert doctor.main(["--device", "cpu"]) == 1
    assert "self-test FAILED" in capsys.readouterr().out


@pytest.mark.gpu
def test_link(tmp_path: Path) -> None:
    done = run("--json", "--device", "cuda", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["link"][key] > 0 for key in ("out_gb_s", "in_gb_s", "both_gb_s"))
