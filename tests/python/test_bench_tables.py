"""The benchmark harness: tables of planned runs, and the bounds beside them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench_support import GIB, STEP, record  # noqa: E402

from bench import records, report  # noqa: E402

pytestmark = pytest.mark.pinned


def results_of_a_row() -> list[records.Record]:
    machine = {"gpu": "GPU", "cpu": "CPU", "torch": "2.11.0"}
    common = {"machine": machine, "limit_bytes": 5 * GIB, "ratio": 2.0000001}
    results = [
        record("plain", machine=machine, step_ms=50.0, in_memory_ms=50.0),
        record("save_on_cpu", machine=machine, step_ms=700.0, in_memory_ms=50.0),
        record("lms-reactive", **common, step_ms=240.0, in_memory_ms=50.0),
        record(
            "lms-swap",
            **common,
            step_ms=200.0,
            in_memory_ms=50.0,
            predicted_ms=195.0,
            allocated_peak=int(4.9 * GIB),
            reserved_peak=int(4.95 * GIB),
            bit_identical=True,
        ),
    ]
    return [records.finish(result) for result in results]


def test_planned_runs_beside_bound_and_others():
    results = results_of_a_row()
    results[-1]["bound_overhead"] = 2.77
    other = record("save_on_cpu", machine={"gpu": "other"}, overhead=9.0)
    lines = report.planned([other, *results]).splitlines()
    header, row = (line.strip("| ").split(" | ") for line in (lines[0], lines[2]))
    assert dict(zip(header, row, strict=True)) == {
        "step": STEP,
        "ratio": "2.00×",
        "limit GiB": "5.00",
        "bound": "+277.0 %",
        "predicted": "+290.0 %",
        "measured": "+300.0 %",
        "over bound": "1.06×",
        "reactive": "+380.0 %",
        "save_on_cpu": "+1300.0 %",
        "bit-identical": "yes",
        "allocated of limit": "98.0 %",
        "reserved of limit": "99.0 %",
    }
    assert "Measured on GPU, CPU, PyTorch 2.11.0." in lines


def test_loops_have_a_table_of_their_own_and_failures_are_named():
    loop = record("lms-swap", step_ms=31.0, over_reactive=1.0204, bit_identical=True)
    loop |= {"step": "loop_shapes", "step_ms_all": [31.0] * 4, "plan_steps": 3, "divergences": 2}
    failed = record("lms-swap", error="NoPlan: none came", limit_bytes=GIB)
    text = report.planned([loop, failed])
    (row,) = [line for line in text.splitlines() if line.startswith("| loop_shapes")]
    assert row == "| loop_shapes | – | 31.0 | 1.020× | 75.0 % | 2 | yes |"
    assert f"- {STEP} lms-swap (1.00 GiB) failed: NoPlan: none came" in text


def test_bounds_are_merged_by_step_and_ratio(tmp_path, monkeypatch, capsys):
    for result in results_of_a_row():
        records.write(result, tmp_path / f"{result['method']}.json")
    three = record("lms-swap", limit_bytes=4, ratio=3.0)
    records.write(three, tmp_path / "three.json")
    tiny = record("lms-swap", limit_bytes=4, ratio=2.0, options={"tiny": True})
    records.write(tiny, tmp_path / "tiny.json")
    bounds = tmp_path / "bounds"
    bounds.write_text(json.dumps({STEP: {"2x": 2.77, "4": 5.0}, "elsewhere": {"2": 1.0}}))
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--merge-bounds", str(bounds)])
    report.main()
    found = {p.stem: r["bound_overhead"] for p, r in records.read_files(tmp_path).items()}
    assert found == {
        "plain": None,
        "save_on_cpu": None,
        "lms-reactive": 2.77,
        "lms-swap": 2.77,
        "three": None,
        "tiny": None,
    }
    told = capsys.readouterr().out
    assert "bounds of 2 records written" in told
    assert f"no run of lms-swap of {STEP} at 4\n" in told
    assert "no run of lms-swap of elsewhere at 2\n" in told


def test_bounds_with_recomputation_are_those_of_runs_that_recompute(tmp_path, monkeypatch):
    llama = "llama1b_adamw_bf16_4x2048"
    for step in (STEP, llama, f"{llama}_in_backward"):
        for method in ("lms", "lms-swap"):
            result = record(method, limit_bytes=4, ratio=2.0) | {"step": step}
            records.write(result, tmp_path / f"{step}.{method}.json")

    def merge(content, *options: str) -> dict[str, tuple]:
        bounds = tmp_path / "bounds"
        bounds.write_text(json.dumps(content))
        given = ["report", str(tmp_path), "--merge-bounds", str(bounds), *options]
        monkeypatch.setattr(sys, "argv", given)
        report.main()
        fields = ("bound_overhead", "bound_recompute_overhead")
        found = records.read_files(tmp_path).items()
        return {p.stem: tuple(r[field] for field in fields) for p, r in found}

    assert merge({STEP: {"2": 0.05}}, "--recompute") | {} == {
        f"{step}.{method}": (None, 0.05 if (step, method) == (STEP, "lms") else None)
        for step in (STEP, llama, f"{llama}_in_backward")
        for method in ("lms", "lms-swap")
    }
    table = [
        {"step": step, "method": method, "ratio": 2.0, "bound_percent": percent}
        for step, method, percent in (
            (STEP, "swap", "infeasible"),
            (llama, "swap", 161.0),
            (llama, "recompute", 6.5),
            (llama, "in_backward", 4.5),
        )
    ]
    assert merge(table) == {
        f"{STEP}.lms": (None, 0.05),
        f"{STEP}.lms-swap": (None, None),
        f"{llama}.lms": (None, 0.065),
        f"{llama}.lms-swap": (1.61, None),
        f"{llama}_in_backward.lms": (None, 0.045),
        f"{llama}_in_backward.lms-swap": (None, None),
    }


def test_runs_that_recompute_beside_what_is_wanted_and_others():
    machine = {"gpu": "GPU", "cpu": "CPU", "torch": "2.11.0"}
    common = {"machine": machine, "in_memory_ms": 50.0}
    limited = common | {"limit_bytes": 5 * GIB, "ratio": 2.0000001}
    results = [
        record("checkpoint", **common, step_ms=70.0, allocated_peak=int(4.5 * GIB)),
        record("save_on_cpu", **common, step_ms=750.0, allocated_peak=2 * GIB),
        record("lms-swap", **limited, step_ms=200.0),
        record(
            "lms",
            **limited,
            step_ms=54.0,
            predicted_ms=53.46,
            bound_recompute_overhead=0.046,
            reserved_peak=int(4.95 * GIB),
            bytes_recomputed=3_210_000_000,
            bytes_out=40_000_000,
            bytes_in=50_000_000,
            bit_identical=True,
            weights_equal=True,
        ),
    ]
    results = [records.finish(result) for result in results]
    lines = report.recompute(results).splitlines()
    header, row = (line.strip("| ").split(" | ") for line in (lines[0], lines[2]))
    assert dict(zip(header, row, strict=True)) == {
        "step": STEP,
        "ratio": "2.00×",
        "limit GiB": "5.00",
        "wanted": "≤ 7 %",
        "bound": "+4.6 %",
        "predicted": "+6.9 %",
        "measured": "+8.0 %",
        "prediction off by": "-1.0 %",
        "copies alone": "+300.0 %",
        "checkpoint": "+40.0 % in 4.50",
        "save_on_cpu": "+1400.0 % in 2.00",
        "bit-identical": "yes",
        "reserved of limit": "99.0 %",
        "recomputed GB": "3.21",
        "out / in GB": "0.04 / 0.05",
    }


def test_bits_are_those_of_a_variant_where_a_step_does_not_repeat_them():
    def row(step: str, **fields) -> records.Record:
        return record("lms", ratio=2.0, **fields) | {"step": step}

    def bits_of(*results: records.Record) -> str:
        lines = report.recompute(results).splitlines()
        header, only = (line.strip("| ").split(" | ") for line in (lines[0], lines[2]))
        return dict(zip(header, only, strict=True))["bit-identical"]

    deeplab = "deeplabv3_r101_bf16_16x513"
    same = {"plain_deterministic": True, "bit_identical": True}
    varies = row(deeplab, plain_deterministic=False)
    variant = row(f"{deeplab}_deterministic", **same, weights_equal=True)
    assert bits_of(varies) == "plain varies"
    assert bits_of(varies, variant) == "yes (variant, 2.00×)"
    assert bits_of(varies, variant | {"weights_equal": False}) == "NO (weights) (variant, 2.00×)"
    assert bits_of(row(STEP, **same)) == "losses"
    assert bits_of(row(STEP, **same | {"bit_identical": False})) == "NO"


def test_records_from_before_plans_can_still_be_read(tmp_path):
    old = {"schema": 1, "step": STEP, "method": "lms-reactive", "limit_bytes": GIB}
    (tmp_path / "old.json").write_text(json.dumps(old))
    (result,) = records.read_all(tmp_path)
    assert set(result) == set(records.FIELDS)
    assert (result["limit_bytes"], result["plan_steps"]) == (GIB, None)
