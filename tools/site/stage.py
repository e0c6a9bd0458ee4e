"""Lays out the site's sources: the repository's pages at their places, and all they link to.

    stage.py FOLDER

Pages stay what they are on disk, with relative links that work there too. README.md is the first
page. A link to a folder becomes one to its README.md, or to a list of its files, and one to a
notebook leads to a page of its cells, with the notebook itself to download. Fails where a link
leads nowhere.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "src/README.md"]
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?\)")
DOWNLOAD = "[The notebook, to download]("
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

PYTHON = """# Python

What `import torch_lms` brings, from its docstrings. [Use](docs/use.md) is the introduction,
[Reference](docs/reference.md) lists settings and statistics.

::: torch_lms
    options:
      show_root_heading: false
      show_root_toc_entry: false
      heading_level: 2
      members: [{names}]
"""
TRAINERS = """
## In trainers of others

::: torch_lms.integrations.Session
    options: {heading_level: 3}
::: torch_lms.integrations.transformers.LmsCallback
    options: {heading_level: 3}
::: torch_lms.integrations.accelerate.attach
    options: {heading_level: 3}
::: torch_lms.integrations.lightning.LmsCallback
    options: {heading_level: 3}
::: torch_lms.integrations.keras.LmsCallback
    options: {heading_level: 3}
::: torch_lms.integrations.ultralytics.attach
    options: {heading_level: 3}
::: torch_lms.integrations.monai.LmsHandler
    options: {heading_level: 3}
::: torch_lms.integrations.nnunet.LmsMixin
    options: {heading_level: 3}
::: torch_lms.integrations.axolotl.LmsPlugin
    options: {heading_level: 3}
"""


def tracked() -> set[Path]:
    """The files that are the project's: what lies about beside them is not published."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


class Stage:
    """Copies pages and what they link to, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = tracked()
        self.done: set[Path] = set()
        self.waiting: list[Path] = []
        self.broken: list[str] = []

    def run(self) -> None:
        """From the first pages and all of docs/ on."""
        docs = sorted(path for path in self.files if path.match("docs/**/*.md"))
        self.waiting = [Path(name) for name in FIRST] + docs
        self.waiting += [path for path in self.files if path.match("docs/*.md")]
        while self.waiting:
            path = self.waiting.pop()
            if path not in self.done:
                self.done.add(path)
                self.take(path)

    def take(self, path: Path) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(ROOT / path, target)
            if path.suffix == ".ipynb":
                target.with_suffix(".md").write_text(self.linked(_cells(ROOT / path), path))
            return
        target.write_text(self.linked((ROOT / path).read_text(), path))

    def linked(self, text: str, page: Path) -> str:
        """The text, with its links followed; code is left alone."""
        parts, end = [], 0
        for fence in FENCE.finditer(text):
            parts += [LINK.sub(lambda m: self.link(m, page), text[end : fence.start()]), fence[0]]
            end = fence.end()
        return "".join([*parts, LINK.sub(lambda m: self.link(m, page), text[end:])])

    def link(self, match: re.Match[str], page: Path) -> str:
        opening, target, anchor = match[1], match[2], match[3] or ""
        if target.startswith(("http:", "https:", "mailto:")):
            return match[0]
        path = Path(*_normal((page.parent / target).parts))
        if path in self.files:
            self.waiting.append(path)
            if path.suffix == ".ipynb" and not opening.endswith(DOWNLOAD):
                return f"{opening}{target.removesuffix('.ipynb')}.md{anchor})"
            return match[0]
        if any(path in file.parents for file in self.files):
            self.folder_page(path)
            return f"{opening}{target.rstrip('/')}/README.md{anchor})"
        self.broken.append(f"{page}: {target}")
        return match[0]

    def folder_page(self, path: Path) -> None:
        """What is shown of a folder: its own page, or a list of its files."""
        own = path / "README.md"
        if own in self.files:
            self.waiting.append(own)
            return
        inside = sorted(file for file in self.files if file.parent == path)
        lines = [f"- [{file.name}]({file.name})" for file in inside]
        target = self.folder / own
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"# {path}\n\n" + "\n".join(lines) + "\n")
        self.waiting += inside


def _cells(path: Path) -> str:
    """A notebook as a page: its text, its code, and a link to itself under the title."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    title, _, rest = parts[0].partition("\n")
    parts[0] = f"{title}\n\n{DOWNLOAD}{path.name})\n{rest}"
    return "\n\n".join(parts) + "\n"


def _normal(parts: tuple[str, ...]) -> list[str]:
    known: list[str] = []
    for part in parts:
        if part == "..":
            if not known:
                return ["outside"]
            known.pop()
        elif part != ".":
            known.append(part)
    return known


def names() -> list[str]:
    """What the package offers, in the order of its file, without running it."""
    text = (ROOT / "python/torch_lms/__init__.py").read_text()
    listed = re.search(r"__all__ = \[(.*?)\]", text, re.DOTALL)[1]
    return [name for name in re.findall(r'"(\w+)"', listed) if not name.startswith("__")]


def main(folder: Path) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    stage = Stage(folder)
    stage.run()
    (folder / "python.md").write_text(PYTHON.format(names=", ".join(names())) + TRAINERS)
    for line in stage.broken:
        print(f"leads nowhere: {line}", file=sys.stderr)
    return 1 if stage.broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
