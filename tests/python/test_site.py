"""The site's sources: every page and what it links to. Figures and picture are of records."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

import torch_lms

pytestmark = pytest.mark.pinned

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path, monkeypatch):
    """A stage for a repository of the given files."""

    def make(files: dict[str, str]):
        for name, text in files.items():
            path = tmp_path / "repository" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        module = tool("stage")
        monkeypatch.setattr(module, "ROOT", tmp_path / "repository")
        monkeypatch.setattr(module, "FIRST", ["README.md"])
        monkeypatch.setattr(module, "tracked", lambda: {Path(name) for name in files})
        stage = module.Stage(tmp_path / "out")
        stage.run()
        return stage

    return make


def test_what_pages_link_to_comes_along(repository, tmp_path: Path) -> None:
    stage = repository({
        "README.md": "[a](docs/a.md#part) ![p](docs/p.svg) [out](https://example.org)",
        "docs/a.md": "[record](../lab/r.json) [folder](../lab) [own](../src/)",
        "docs/b.md": "no link leads here, but it is one of the pages",
        "docs/p.svg": "<svg/>", "lab/r.json": "{}", "lab/s.json": "{}",
        "src/README.md": "[up](../README.md)", "src/code.cpp": "never linked",
    })  # fmt: skip
    out = tmp_path / "out"
    assert stage.broken == []
    assert (out / "README.md").read_text().startswith("[a](docs/a.md#part)")
    assert "[folder](../lab/README.md) [own](../src/README.md)" in (out / "docs/a.md").read_text()
    assert (out / "lab/README.md").read_text().count("](") == 2
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found >= {"docs/b.md", "docs/p.svg", "lab/r.json", "lab/s.json", "src/README.md"}
    assert "src/code.cpp" not in found


def test_links_that_lead_nowhere_are_named(repository) -> None:
    stage = repository({
        "README.md": "[gone](docs/gone.md) [above](../../etc/passwd)\n```\n[no](link)\n```\n",
        "docs/a.md": "[fine](../README.md)",
    })  # fmt: skip
    assert stage.broken == ["README.md: docs/gone.md", "README.md: ../../etc/passwd"]


def test_a_notebook_is_a_page_and_a_file(repository, tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Why, [where](../docs/a.md)."]},
        {"cell_type": "code", "source": ["x = [1](2)\n", "x"]},
        {"cell_type": "markdown", "source": ["[Next](m.ipynb), [gone](gone.ipynb)"]},
    ]
    files = {
        "README.md": "[n](nb/n.ipynb)", "docs/a.md": "[here](../nb/n.ipynb#part)",
        "nb/n.ipynb": json.dumps({"cells": cells}), "nb/m.ipynb": json.dumps({"cells": cells[:1]}),
    }  # fmt: skip
    stage = repository(files)
    out = tmp_path / "out"
    assert stage.broken == ["nb/n.ipynb: gone.ipynb"]
    assert (out / "README.md").read_text() == "[n](nb/n.md)"
    assert (out / "docs/a.md").read_text() == "[here](../nb/n.md#part)"
    assert (out / "nb/n.ipynb").read_text() == files["nb/n.ipynb"]
    page = (out / "nb/n.md").read_text()
    assert page == (
        "# Title\n\n[The notebook, to download](n.ipynb)\n\nWhy, [where](../docs/a.md).\n\n"
        "```python\nx = [1](2)\nx\n```\n\n[Next](m.md), [gone](gone.ipynb)\n"
    )
    assert (out / "nb/m.md").is_file()


def test_the_reference_has_all_that_the_package_offers() -> None:
    offered = [name for name in torch_lms.__all__ if not name.startswith("__")]
    assert tool("stage").names() == offered
    for name in offered:
        assert getattr(torch_lms, name).__doc__, f"{name} has no docstring"


def test_every_page_of_docs_is_in_the_navigation() -> None:
    listed = (ROOT / "tools" / "site" / "mkdocs.yml").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert f": docs/{path.name}\n" in listed, path.name


def test_the_picture_is_of_the_records() -> None:
    picture = tool("picture")
    assert picture.OUT.read_text() == picture.svg(), "python tools/site/picture.py"
    assert len(re.findall(r"<rect ", picture.svg())) == 1 + 2 * len(picture.ROWS)


def test_measured_figures_of_the_comparison() -> None:
    """Each cell with a record says what the record says."""
    page = (ROOT / "docs" / "when-not.md").read_text()
    cells = re.findall(r"\[\+([\d.]+) %[^\]]*\]\((\.\./lab/results/[^)]+)\)", page)
    assert len(cells) == 15
    for said, path in cells:
        overhead = 100 * json.loads((ROOT / "docs" / path).read_text())["overhead"]
        digits = len(said.partition(".")[2])
        assert f"{overhead:.{digits}f}" == said, path


def test_figures_of_which_limit_are_those_of_performance() -> None:
    performance = (ROOT / "docs" / "performance.md").read_text()
    page = (ROOT / "docs" / "which-limit.md").read_text()
    for start in ("3D U-Net", "ResNet50", "Llama 1.1 B", "the same with"):
        said = next(line for line in page.splitlines() if line.startswith(f"| {start}"))
        rows = [line for line in performance.splitlines() if line.startswith(f"| {start}")]
        figures = re.findall(r"\+[\d.]+ %", said)
        assert len(figures) >= 2
        assert set(figures) <= set(re.findall(r"\+[\d.]+ %", rows[0])), start
