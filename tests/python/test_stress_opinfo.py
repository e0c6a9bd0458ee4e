"""PyTorch's own operator samples under stress, and the runner that must not hide a failure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stress import harness
from stress.compare import bits_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from bench import opinfo, opinfo_cases, opinfo_report  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

# Stands in for a worker: says that it began and ended, and dies in the cases whose name says so.
WORKER = """
import json, os, sys
with open(sys.argv[1], "a", buffering=1) as sink:
    for key in sys.stdin.read().split():
        phase = "plain" if "early" in key else "managed"
        print(json.dumps({"begin": key, "phase": phase}), file=sink)
        if "crash" in key:
            os.abort()
        record = {"end": key, "status": "passed", "runs": 1, "evictions": 3, "clean": 1}
        print(json.dumps(record), file=sink)
"""


def test_a_crash_costs_one_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash under LMS is a failure, a crash in plain PyTorch a skip, and the rest still runs."""

    def spawn(args: Any, sink: Path, keys: list[str]) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(sink)], stdin=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        child.stdin.write("\n".join(keys))
        child.stdin.close()
        return child

    monkeypatch.setattr(opinfo, "spawn", spawn)
    sink = tmp_path / "lines"
    sink.touch()
    args = opinfo.parse_arguments(["--device", "cpu"])
    keys = ["a", "crash", "b", "crash_early", "c"]
    done = opinfo.run_workers(args, keys, sink)
    assert {key: done[key]["status"] for key in keys} == {
        "a": "passed",
        "crash": "failed",
        "b": "passed",
        "crash_early": "skipped",
        "c": "passed",
    }
    report = opinfo_report.summarise(args, done, len(done), 1.0, "c0ffee")
    assert (report["passed"], report["failed"], sum(report["skipped"].values())) == (3, 1, 1)
    assert "crash" in report["failures"] and "managed" in report["failures"]["crash"]


def test_only_plain_runs_clear_a_difference() -> None:
    """An operator that differs now and then in plain PyTorch is told from one that never does."""
    turns = iter(range(1000))

    def moody(*_: Any) -> list[torch.Tensor]:
        return [torch.full((4,), float(next(turns) == 50))]

    def steady(*_: Any) -> list[torch.Tensor]:
        return [torch.zeros(4)]

    expected = bits_of([torch.zeros(4)])
    which = opinfo.varies(None, moody, None, expected, "cpu")  # type: ignore[arg-type]
    assert which == "plain run 51"
    assert not opinfo.varies(None, steady, None, expected, "cpu")  # type: ignore[arg-type]


@pytest.mark.gpu
def test_disturbed_runs_are_plain_runs() -> None:
    """Operators within, of the backward pass as well, give what they give alone."""
    x = torch.arange(4096.0, device="cuda", requires_grad=True)
    alone = torch.autograd.grad((x.sin() * x).sum(), x)[0]
    with opinfo.disturbance("cuda"):
        disturbed = torch.autograd.grad((x.sin() * x).sum(), x)[0]
    assert torch.equal(alone, disturbed)


def test_shards_cover_everything_once() -> None:
    """The parts of a split add up to the whole."""
    whole = opinfo.selected_keys("cpu", quick=False, shard="0/1", only="")
    parts = [opinfo.selected_keys("cpu", quick=False, shard=f"{i}/3", only="") for i in range(3)]
    assert len(whole) > 1200
    assert sorted(key for part in parts for key in part) == sorted(whole)
    operators = [name for part in parts for name in opinfo.operators(part)]
    assert len(operators) == len(set(operators)), "its types are in one part, or it counts twice"
    quick = opinfo.selected_keys("cpu", quick=True, shard="0/1", only="")
    assert set(quick) < set(whole) and len(quick) > 150


def test_copies_keep_strides_and_sharing() -> None:
    """What a sample's copy must have: the same layout, aliasing, laziness and bytes."""
    base = torch.randn(8, 8)
    kept = (base.t()[1:], [base[2], base.conj()], torch.randn(3, dtype=torch.cfloat).conj())
    copied = opinfo_cases.copy_tree(kept)
    assert copied[0].stride() == kept[0].stride()
    assert not harness.differences(harness.bits_of(kept), harness.bits_of(copied))
    copied[0].fill_(5)
    assert copied[1][0][1] == 5 and base[2, 1] != 5, "an alias within, no alias to the original"
    assert copied[2].is_conj()


def _quick(device: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    harness.lms()
    out = tmp_path / "opinfo.json"
    opinfo.main(["--device", device, "--quick", "--out", str(out), *options])
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_quick_subset(device: str, tmp_path: Path) -> None:
    """The fixed subset: nothing fails, most of it is compared, and blocks did leave."""
    report = _quick(device, tmp_path)
    assert report["failures"] == {}
    assert report["passed"] > 150
    assert sum(report["skipped"].values()) < report["passed"] / 4
    assert len(report["without_eviction"]) < report["passed"] / 4
    assert report["evictions"] > report["runs_compared"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_quick_subset_dropped(device: str, tmp_path: Path) -> None:
    """The same, with what can be computed again dropped: much is, and nothing differs."""
    report = _quick(device, tmp_path, "--drop")
    assert report["method"] == "lms-drop"
    assert report["failures"] == {}
    assert report["passed"] > 150
    assert report["remakes"] > report["runs_compared"]
    assert report["operators_dropped"] > 40
