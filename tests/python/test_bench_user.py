"""torch_lms.bench: a user's own training step, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_builder import build

import torch_lms
from torch_lms import _bench


def test_records_of_every_method_agree(tmp_path: Path) -> None:
    records = torch_lms.bench(
        build,
        [64],
        methods=["plain", "lms", "save_on_cpu"],
        cap="1200KiB",
        device="cpu",
        out=tmp_path,
        min_block="16KiB",
        warmup=1,
        steps=2,
        settle=2,
        plan_seconds=0.1,
        describe=lambda size: {"batch": size, "sides": [16, 16], "unit": "MP", "per_step": 0.5},
    )
    assert [record["outcome"] for record in records] == ["ok"] * 3, records
    plain, lms, offloaded = records
    assert lms["losses"][:3] == plain["losses"][:3] == offloaded["losses"][:3]
    assert plain["losses"][0] != plain["losses"][1]
    assert lms["limit"] == 1200 * 2**10
    assert lms["peak"]["allocated"] <= lms["limit"]
    assert lms["stats"]["bytes_out"] > 0
    assert offloaded["bytes"]["to_host"] == offloaded["bytes"]["to_device"] > 0
    assert plain["bytes"] == {"to_host": 0, "to_device": 0}
    assert plain["rate"]["median"] > 0 and len(plain["steps"]) == 2
    path = tmp_path / "user" / "batch" / "lms.64.json"
    written = json.loads(path.read_text())
    assert written == lms
    assert written["schema"] == "lms-bench/1" and written["sides"] == [16, 16]
    # It has a record, and is not made again.
    before = path.stat().st_mtime_ns
    known = torch_lms.bench(build, [64], methods=["lms"], device="cpu", out=tmp_path)
    assert known == [lms] and path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("size", "timeout", "outcome", "message"),
    [
        pytest.param(666, 60, "failed", "a number that cannot be", marks=pytest.mark.slow),
        (667, 60, "failed", "status 9"),
        (668, 1, "timeout", "not done after"),
    ],
)
def test_what_goes_wrong_is_recorded(
    tmp_path: Path, size: int, timeout: float, outcome: str, message: str
) -> None:
    (record,) = torch_lms.bench(
        build, [size], methods=["plain"], device="cpu", out=tmp_path, timeout=timeout
    )
    assert record["outcome"] == outcome
    assert message in record["message"]
    assert record["wall"] > 0


@pytest.mark.slow
def test_an_impossible_cap_is_out_of_memory(tmp_path: Path) -> None:
    (record,) = torch_lms.bench(
        build, [64], methods=["lms"], cap="64KiB", device="cpu", out=tmp_path, min_block="4KiB"
    )
    assert record["outcome"] == "oom", record["message"]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of the methods"):
        torch_lms.bench(build, [1], methods=["magic"], device="cpu", out=tmp_path)
    with pytest.raises(TypeError, match="top of a module"):
        torch_lms.bench(lambda size: None, [1], device="cpu", out=tmp_path)


def test_spans_and_gaps() -> None:
    assert _bench.merged([(2, 3), (0, 1), (0.5, 1.5)]) == [(0, 1.5), (2, 3)]
    assert _bench.merged([(0, 1), (1.1, 2), (5, 6), (9, 10)], 3) == [(0, 2), (5, 6), (9, 10)]
    gaps = _bench.longest_gaps([(0, 1, "a"), (4, 5, "b"), (0.5, 2, "c")])
    assert gaps == [{"at": 2, "for": 2, "before": "b"}]
