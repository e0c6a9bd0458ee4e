"""The code of the pages in docs/ runs. README's is test_readme.py's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.pinned

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What the pages take for granted: a loop of somebody's own, small enough for the CPU.
READER = """
import contextlib, torch, torch_lms
enable = torch_lms.enable
def small(limit="64MiB", **more):
    enable(**{"limit": {"12GiB": "1MiB"}.get(limit, limit), "min_block": "16KiB", **more})
torch_lms.enable = small
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
values = [torch.randn(128, 128) for _ in range(20)]
def loss(value, target=0):
    return (value - target).square().mean()
def train_step(batch):
    optimizer.zero_grad()
    loss(model(batch)).backward()
    optimizer.step()
"""
# What else the reader of a page has: at its beginning, and before a block of it.
BEFORE = {
    "planning.md": "batches = values\n",
    "which-limit.md": "batches = values\n",
    "integrations.md": "batches = values\n",
    "step-in-backward.md": "batches = [(value, value) for value in values[:3]]\n",
}
BETWEEN = {
    ("step-in-backward.md", 1): (
        "optimizer = torch.optim.AdamW(model.parameters())\nmicro_batches = values[:4]\n"
        "plain_loss, loss = loss, lambda batch: plain_loss(model(batch))\n"
    ),
    ("planning.md", 1): "for value in values: train_step(value)\ntorch_lms.wait_for_plan()\n",
}
# A sketch with `...`; test_bench_user.py runs torch_lms.bench.
SKETCHES = {"studies.md"}
# Commands, by how they begin, that are not run here.
NOT_RUN = {
    "pip ": "builds and wheels: `make test-wheels`, `make test-newest`",
    "torchrun ": "tests/python/test_several_ranks.py",
    "lms train": "the trainer needs data: tests/train",
    "lms eval": "the same",
    "lms predict": "the same",
    "lms bench": "measures for minutes: tests/studies",
    "lms run -- nnUNetv2_train": "a program that is not installed",
    "lms run --limit 12GiB train.py": "the reader's own program; test_run.py",
    "lms run --nproc-per-node 2 --limit 60GiB train.py": "the reader's own; test_run.py",
    "lms run --limit 80% -m package.train": "the reader's own program; test_run.py",
    "python -m torch_lms run --limit 12GiB train.py": "the reader's own program; test_run.py",
    "LMS_MONITOR=1 python train.py": "the reader's own program; test_monitor.py",
}
PROGRAM = ROOT / "build" / "tools" / "lms" / "lms"


def python_of(page: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(PAGES[page]) if kind == "python"]


def commands() -> list[tuple[str, str]]:
    found = []
    for page, text in PAGES.items():
        for kind, block in BLOCK.findall(text):
            if kind not in ("", "sh"):
                continue
            lines = block.splitlines()
            shown = [line[2:] for line in lines if line.startswith("$ ")]  # with what it prints
            for line in shown or lines:
                command = line.split("  #")[0].strip()
                if command and not command.startswith("#"):
                    found.append((page, command))
    return found


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """Variables under which `lms` and `python` are this tree's, on the CPU."""
    programs = tmp_path / "programs"
    programs.mkdir()
    lms = tmp_path / "lms.py"
    lms.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from torch_lms_tool import main\n"
        f"main.PROGRAM = Path({str(PROGRAM)!r})\nsys.exit(main.main())\n"
    )
    forked.executable(programs / "lms", str(lms))
    forked.executable(programs / "python")
    variables = {name: value for name, value in os.environ.items() if name != "LMS_VERIFY"}
    variables["PYTHONPATH"] = str(ROOT / "python")
    variables["PATH"] = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # The reader is in a copy of the repository, where nothing is to be left.
    for name in ("tests", "examples", "lab"):
        (tmp_path / name).symlink_to(ROOT / name)
    return variables | {"LMS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    "page", [page for page in sorted(PAGES.keys() - SKETCHES) if python_of(page)]
)
def test_python_of_the_page_runs(page: str, surroundings, tmp_path: Path) -> None:
    text = READER + BEFORE.get(page, "")
    for at, block in enumerate(python_of(page)):
        text += BETWEEN.get((page, at), "") + block + "\n"
    ran = subprocess.run(
        [*forked.command(), "-c", text], capture_output=True, text=True, env=surroundings,
        cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    if page == "quick-start.md":
        wants, gets = re.search(r"wants (\d+) MiB and gets (\d+)", PAGES[page]).groups()
        assert f"limit {gets}.0 MiB" in ran.stdout
        assert f"takes {wants}.0 MiB in memory" in ran.stdout


RUN = [pair for pair in dict.fromkeys(commands()) if not pair[1].startswith(tuple(NOT_RUN))]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), RUN, ids=lambda value: value[:40])
def test_command_of_the_page_runs(page: str, command: str, surroundings, tmp_path: Path) -> None:
    if re.search(r"\blms (plan|trace)\b", command) and not PROGRAM.is_file():
        pytest.skip("the program lms is not built here (libcli11-dev)")
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], capture_output=True, text=True,
        env=surroundings, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_is_not_run_is_on_a_page() -> None:
    everything = [command for _, command in commands()]
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in everything), start


def test_pages_with_commands_that_run() -> None:
    assert {page for page, _ in RUN} >= {"quick-start.md", "which-limit.md", "planning.md"}


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ("this torch_lms was built for PyTorch", "python/torch_lms/_built_for.py"),
        ("unknown setting", "python/torch_lms/_settings.py"),
        ("unknown environment variable", "python/torch_lms/_settings.py"),
        ("is no Python program", "python/torch_lms/_run.py"),
        ("the smallest limit that could work here is", "adapters/torch/thread_state.cpp"),
        ("host arena is full", "src/tiers/host_arena.cpp"),
        ("kept in memory", "src/tiers/file_store.cpp"),
        ("Nothing has had to leave", "python/torch_lms/_explain.py"),
        ("Not planned yet", "python/torch_lms/_explain.py"),
        ("turned out to be others than planned", "python/torch_lms/_explain.py"),
    ],
)
def test_messages_that_symptoms_quotes_are_said(words: str, source: str) -> None:
    assert words.lower() in PAGES["symptoms.md"].lower()
    assert words in (ROOT / source).read_text()
