"""Shards of a run over PyTorch's operator samples, added up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench import opinfo, opinfo_report  # noqa: E402

WHOLE = ROOT / "lab" / "results" / "opinfo-cuda.json"


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Reports of a run in three shards, of one operator each; the last one fails."""
    facts = {"gpu": "a GPU", "cpu": "", "cpus": 1}
    monkeypatch.setattr(opinfo_report.records, "machine", lambda device: facts)
    counted = {"runs": 4, "evictions": 9, "clean": 2, "refused": {"plain PyTorch raises": 1}}
    records: list[dict[str, Any]] = [
        {"end": "b|int64", "status": "passed", **counted, "cleared": ["sample 0"]},
        {"end": "a|int64", "status": "skipped", "reason": "it cannot be called"},
        {"end": "c|int64", "status": "failed", "reason": "other bits"},
    ]
    paths = []
    for part, record in enumerate(records):
        args = opinfo.parse_arguments(["--shard", f"{part}/3"])
        done = {record["end"]: record}
        report = opinfo_report.summarise(args, done, 2, 1.0 + part, "c0ffee")
        paths.append(tmp_path / f"{part}.json")
        paths[-1].write_text(json.dumps(report))
    return paths


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_shards_add_up(shards: list[Path], tmp_path: Path) -> None:
    """To a file like those that are kept; a failure in a shard is one of the whole."""
    out = tmp_path / "whole.json"
    assert opinfo.main(["--merge", *map(str, reversed(shards)), "--json", str(out)]) == 1
    whole = json.loads(out.read_text())
    assert list(whole) == list(json.loads(WHOLE.read_text()))
    assert (whole["passed"], whole["failed"], whole["not_reached"]) == (1, 1, 3)
    assert (whole["evictions"], whole["seconds"], whole["shards"]) == (9, 3.0, 3)
    assert whole["skips"] == {"it cannot be called": ["a|int64"]}
    assert whole["failures"] == {"c|int64": "other bits"}
    assert whole["differ_in_plain_pytorch"] == {"b|int64": ["sample 0"]}


def test_each_shard_is_there_once(shards: list[Path]) -> None:
    with pytest.raises(SystemExit, match="not given: 1/3"):
        opinfo_report.merge([shards[0], shards[2]])
    with pytest.raises(SystemExit, match="2.json: shard 2/3 was given already"):
        opinfo_report.merge([*shards, shards[2]])
    change(shards[2], shard="2/4")
    with pytest.raises(SystemExit, match="shard 2/4 is of another split than 0/3"):
        opinfo_report.merge(shards)


@pytest.mark.parametrize(
    "field", [{"method": "lms-drop"}, {"commit": "decaf"}, {"device": "cuda"}, {"quick": True}]
)
def test_shards_are_of_one_run(shards: list[Path], field: dict[str, Any]) -> None:
    change(shards[1], **field)
    with pytest.raises(SystemExit, match=f"1.json: not of the same run: {next(iter(field))}"):
        opinfo_report.merge(shards)


def test_a_whole_is_no_shard(shards: list[Path]) -> None:
    with pytest.raises(SystemExit, match="opinfo-cuda.json: not the report of a shard"):
        opinfo_report.merge([WHOLE, *shards])
