"""torch_lms.bench: a user's own training step, on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bench_builder import build

import torch_lms
from torch_lms._bench_record import read_record, write_record
from torch_lms._bench_timeline import longest_gaps, merged


def describe(size: int) -> dict[str, object]:
    return {"batch": size, "sides": [16, 16], "unit": "MP", "per_step": 0.5}


def assert_fields_are_listed(record: dict[str, Any]) -> None:
    """C++ reads records by the list in lab/records/fields.h."""
    root = Path(__file__).resolve().parents[2]
    listed = re.findall(r'visit\("([^"]+)"', (root / "lab/records/fields.h").read_text())
    objects = {name.split(".")[0] for name in listed if "." in name}
    written = {"schema"}
    for name, value in record.items():
        inside = isinstance(value, dict) and name in objects
        written |= {f"{name}.{key}" for key in value} if inside else {name}
    assert written <= {"schema", *listed}


def test_records_of_every_method_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        describe=describe,
    )
    assert [record["outcome"] for record in records] == ["ok"] * 3, records
    said = capsys.readouterr().err
    assert "torch_lms.bench: 2 of 3, lms at 64 ...\n" in said
    assert "torch_lms.bench: 3 of 3, save_on_cpu at 64: ok, " in said
    plain, lms, offloaded = records
    assert lms["losses"][:3] == plain["losses"][:3] == offloaded["losses"][:3]
    assert plain["losses"][0] != plain["losses"][1]
    assert lms["limit"] == 1200 * 2**10
    assert lms["peak"]["allocated"] <= lms["limit"]
    assert lms["stats"]["bytes_out"] > 0
    assert offloaded["bytes"]["to_host"] == offloaded["bytes"]["to_device"] > 0
    assert plain["bytes"] == {"to_host": 0, "to_device": 0}
    assert len(plain["steps"]) == 2
    assert plain["rate"]["mean"] == pytest.approx(1 / sum(plain["steps"]))
    assert not any("partial" in record for record in records)
    for record in records:
        assert_fields_are_listed(record)
    assert "not settled" in lms["message"]
    path = tmp_path / "user" / "batch" / "lms.64.json"
    written = json.loads(path.read_text())
    assert written == lms
    assert written["schema"] == "lms-bench/1" and written["sides"] == [16, 16]
    # It has a record, and is not made again.
    before = path.stat().st_mtime_ns
    again = {"methods": ["lms"], "device": "cpu", "out": tmp_path, "describe": describe}
    assert torch_lms.bench(build, [64], cap="1200KiB", **again) == [lms]
    assert path.stat().st_mtime_ns == before
    # One of another cap is not taken for what is asked, and not lost either.
    with pytest.raises(ValueError, match="cap 1228800, not 2097152"):
        torch_lms.bench(build, [32, 64], cap="2MiB", **again)
    assert json.loads(path.read_text()) == lms
    assert not path.with_name("lms.32.json").exists()


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
    assert_fields_are_listed(record)


def test_a_record_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a" / "record.json"
    write_record(path, {"schema": "lms-bench/1", "outcome": "ok", "losses": [float("nan"), 1.0]})
    known = read_record(path)
    assert known is not None and known["losses"] == [None, 1.0]
    with pytest.raises(TypeError):
        write_record(path, {"schema": object()})
    assert read_record(path) == known
    assert [each.name for each in path.parent.iterdir()] == ["record.json"]
    for text in ("", "{", "[]", '{"schema": "lms-bench/1"}', '{"schema": "other", "outcome": 1}'):
        path.write_text(text)
        assert read_record(path) is None


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_try_ends_with_the_program_that_began_it(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "bench_builder.py", tmp_path],
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        noted = tmp_path / "pid"
        while not (noted.exists() and noted.read_text()):
            assert program.poll() is None
            time.sleep(0.05)
        child = int(noted.read_text())
        assert runs(child)
        program.kill()
        program.wait()
        end = time.monotonic() + 10
        while runs(child) and time.monotonic() < end:
            time.sleep(0.05)
        assert not runs(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps: 0 is below 1"):
        torch_lms.bench(build, [1], steps=0, device="cpu", out=tmp_path)
    with pytest.raises(ValueError, match="none of the methods"):
        torch_lms.bench(build, [1], methods=["magic"], device="cpu", out=tmp_path)
    with pytest.raises(TypeError, match="top of a module"):
        torch_lms.bench(lambda size: None, [1], device="cpu", out=tmp_path)


def test_spans_and_gaps() -> None:
    assert merged([(2, 3), (0, 1), (0.5, 1.5)]) == [(0, 1.5), (2, 3)]
    assert merged([(0, 1), (1.1, 2), (5, 6), (9, 10)], 3) == [(0, 2), (5, 6), (9, 10)]
    gaps = longest_gaps([(0, 1, "a"), (4, 5, "b"), (0.5, 2, "c")])
    assert gaps == [{"at": 2, "for": 2, "before": "b"}]
