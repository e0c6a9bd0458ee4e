"""What the wheels say of themselves, and the program `lms` that they bring."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_lms
from torch_lms_tool import main as tool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def packaging(monkeypatch: pytest.MonkeyPatch):
    """The metadata's provider."""
    path = ROOT / "tools" / "packaging" / "torch_release.py"
    spec = importlib.util.spec_from_file_location("torch_release", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("LMS_TORCH_DIR", "LMS_LOCAL_VERSION"):
        monkeypatch.delenv(name, raising=False)
    return module


def test_a_wheel_wants_the_release_that_it_was_built_for(packaging, monkeypatch, tmp_path) -> None:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    wanted = [f"torch>={major}.{minor},<{major}.{minor + 1}"]
    assert packaging.dynamic_metadata("dependencies", {}) == wanted
    (tmp_path / "version.py").write_text("__version__ = '2.99.1+cu140'\n")
    monkeypatch.setenv("LMS_TORCH_DIR", str(tmp_path))
    assert packaging.dynamic_metadata("dependencies", {}) == ["torch>=2.99,<2.100"]
    monkeypatch.setenv("LMS_TORCH_DIR", str(tmp_path / "nowhere"))
    assert packaging.dynamic_metadata("dependencies", {}) == ["torch>=2.11"]


def test_versions_and_labels(packaging, monkeypatch) -> None:
    assert packaging.dynamic_metadata("version", {}) == torch_lms.__version__
    monkeypatch.setenv("LMS_LOCAL_VERSION", "torch2.11")
    assert packaging.dynamic_metadata("version", {}) == f"{torch_lms.__version__}+torch2.11"
    with pytest.raises(ValueError, match="readme"):
        packaging.dynamic_metadata("readme", {})


def test_the_citation_and_the_change_log_have_the_version() -> None:
    assert f"\nversion: {torch_lms.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {torch_lms.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_lms_tells_its_version_without_pytorch() -> None:
    program = (
        "import sys; from torch_lms_tool.main import main; code = main(['--version']); "
        "sys.exit(code or ('torch' in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == (f"lms {torch_lms.__version__}\n", 0), ran.stderr


def test_an_installation_without_the_compiled_program(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(tool, "PROGRAM", tmp_path / "none")
    assert tool.main(["plan", "step.json"]) == tool.FAILED
    said = capsys.readouterr().err
    assert "no command 'plan' in this installation" in said and "libcli11-dev" in said
    assert "  run " in said and "  doctor " in said
    assert tool.main([]) == tool.FAILED
    assert tool.main(["--help"]) == 0


def test_other_commands_are_the_compiled_programs(monkeypatch, tmp_path) -> None:
    called = []
    program = tmp_path / "lms"
    program.write_text("")
    monkeypatch.setattr(tool, "PROGRAM", program)
    monkeypatch.setattr(os, "execve", lambda *words: called.append(words))
    monkeypatch.setenv("LMS_HIGHS", "/the/one/named")
    tool.main(["plan", "step.json", "--limit", "1GiB"])
    (path, words, environ) = called[0]
    assert path == program and words == ["lms", "plan", "step.json", "--limit", "1GiB"]
    assert environ["LMS_HIGHS"] == "/the/one/named"
    monkeypatch.delenv("LMS_HIGHS")
    if importlib.util.find_spec("highspy") is not None:
        assert Path(tool.environment()["LMS_HIGHS"]).name.startswith("libhighs.so")
