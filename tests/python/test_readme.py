"""README: its code runs, its figures are those of the records, its links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.pinned

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
RECORDS = ROOT / "lab" / "results"
# What other tests run: `make demo` is test_demo_brain.py's, `make test` has called this, and wheels
# and builds by pip are tried by `make test-wheels` and `make test-newest`.
ELSEWHERE = ("make demo", "make test", "pip install .")
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "src/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


def commands() -> list[str]:
    lines = [line for kind, text in BLOCKS if kind in ("", "sh") for line in text.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """Variables under which `lms` and `python` are this tree's, on the CPU."""
    code = "import sys\nfrom torch_lms_tool.main import main\nsys.exit(main())"
    forked.executable(tmp_path / "lms", "-c", code)
    forked.executable(tmp_path / "python")
    variables = {name: value for name, value in os.environ.items() if name != "LMS_VERIFY"}
    variables["PYTHONPATH"] = str(ROOT / "python")
    variables["PATH"] = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return variables | {"LMS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def run(command: list[str] | str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=isinstance(command, str), capture_output=True, text=True, env=variables,
        cwd=ROOT, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "python"])
def test_python_blocks_run(text: str, surroundings: dict[str, str]) -> None:
    ran = run([*forked.command(), "-c", text], surroundings)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_commands_run_and_the_quick_start_keeps_its_promise(surroundings: dict[str, str]) -> None:
    managed = [line for line in commands() if line not in ELSEWHERE]
    assert managed == ["lms run --log info --limit 100MiB examples/quickstart/train.py"]
    under = run(managed[0], surroundings)
    assert under.returncode == 0, under.stderr
    said = re.search(r"at most ([\d.]+) MiB .* limit of ([\d.]+) MiB; (.+) left", under.stderr)
    assert float(said.group(1)) <= 100 and float(said.group(2)) == 100
    assert said.group(3) != "0 B"
    plain = run("python examples/quickstart/train.py", surroundings)
    losses = [re.findall(r"loss (\S+)", ran.stdout) for ran in (plain, under)]
    assert len(losses[0]) == 3 and losses[0] == losses[1]


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {kind for kind, _ in BLOCKS} <= {"python", "sh", ""}
    assert "python examples/quickstart/train.py" in README


def test_the_quick_start_is_on_the_first_screen() -> None:
    lines = README.splitlines()
    assert next(at for at, line in enumerate(lines) if line.startswith("pip install")) < 30
    assert next(at for at, line in enumerate(lines) if "torch_lms.enable()" in line) < 12


def record(name: str) -> dict:
    assert f"(lab/results/{name})" in README, f"README names no {name}"
    return json.loads((RECORDS / name).read_text())


def row(start: str) -> str:
    return next(line for line in README.splitlines() if line.startswith(f"| {start}"))


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("ResNet50, bf16", "resnet50_bf16_256x224"),
        ("Llama 1.1 B", "llama1b_adamw_bf16_4x2048_in_backward"),
    ],
)
def test_figures_of_steps(start: str, name: str) -> None:
    run_of = record(f"recompute/{name}.lms.4x.json")
    plain = json.loads((RECORDS / "recompute" / f"{name}.plain.json").read_text())
    assert run_of["ratio"] == 4 and run_of["bit_identical"] and run_of["planned"]
    assert f"{100 * run_of['overhead']:.1f} % longer" in row(start)
    assert f"| {plain['allocated_peak'] / 2**30:.1f} GiB |" in row(start)


def test_figures_of_the_studies() -> None:
    largest = record("studies/B2/resolution/lms.3480.json")
    before = json.loads((RECORDS / "studies/B2/resolution/plain.1160.json").read_text())
    assert largest["sides"] == [3480, 3480] and before["sides"] == [1160, 1160]
    assert largest["outcome"] == before["outcome"] == "ok"
    assert largest["cap"] == before["cap"] == 16 << 30
    boundary = json.loads((RECORDS / "studies/B2/resolution/boundary.plain.json").read_text())
    assert "1160" in json.dumps(boundary)
    assert largest["rate"]["median"] >= before["rate"]["median"]
    for words in ("at most 1160²", "3480², nine times the pixels", "same pixels a second"):
        assert words in row("DeepLabv3+ in 16 GiB")


def test_figures_of_the_bits() -> None:
    under = record("training/camvid.quarter.json")
    plain = json.loads((RECORDS / "training/camvid.in-memory.json").read_text())
    assert under["losses_sha256"] == plain["losses_sha256"]
    assert under["weights"] == plain["weights"]
    assert under["steps"] == plain["steps"] == 2000
    assert f"| {plain['peak_bytes'] >> 20} MiB | 770 MiB:" in row("DeepLabv3+ on CamVid")


def test_figures_of_what_one_does_by_hand() -> None:
    by_hand = record("recompute/resnet50_bf16_256x224.checkpoint.json")
    assert f"takes {100 * by_hand['overhead']:.0f} % longer" in README.replace("\n", " ")
    assert f"reaches {by_hand['allocated_peak'] / 2**30:.1f} GiB" in README
    saved = record("recompute/resnet50_bf16_256x224.save_on_cpu.json")
    assert f"takes {1 + saved['overhead']:.0f} times as long" in README
    name = "deferred/foreach-after/llama1b_adamw_bf16_4x2048.lms.4x.json"
    llama = json.loads((RECORDS / name).read_text())
    assert f"takes {100 * llama['overhead']:.0f} % longer" in README


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target
