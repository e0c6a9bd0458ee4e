"""The benchmark harness where it measures what a step costs the host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench_support import setting  # noqa: E402

from bench import host, host_profile, packages, report, run, steps, worker  # noqa: E402
from bench.methods import run as run_method  # noqa: E402
from bench.suites import SUITES  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.pinned]


def test_every_step_is_known():
    known = steps.STEPS.keys() | packages.STEPS.keys()
    assert set(run.STEP_NAMES) == known
    assert all(job.step in known for job in SUITES["host"].jobs)


def test_three_ways_to_run_a_step():
    step = "llama1b_adamw_bf16_4x2048"
    given = setting(step=step, warmup=2, steps=3, plan_seconds=0.2, limit_bytes=None)
    fields = run_method("host", given)
    rows = fields["host"]
    assert fields["error"] is None
    assert list(rows) == ["plain", "fits", "planned"]
    for row in rows.values():
        for way in ("free", "synced"):
            assert len(row[way]["step_ms_all"]) == 3
            assert row[way]["cpu_ms"] > 0
    for way in ("free", "synced"):
        fits, planned = rows["fits"][way], rows["planned"][way]
        assert fits["per_step"]["evictions"] == 0
        assert fits["predicted_ms"] is None
        assert planned["per_step"]["plan.steps"] == 1
        assert planned["per_step"]["plan.divergences"] == 0
        assert planned["per_step"]["evictions"] + planned["per_step"]["drops"] > 0
    assert rows["planned"]["limit_bytes"] == rows["plain"]["allocated_peak"] // 2
    # The same weights and data in all three.
    firsts = [row["first_losses"][:2] for row in rows.values()]
    assert firsts[1] == firsts[0]
    assert firsts[2] == firsts[0]
    assert fields["predicted_ms"] == rows["planned"]["free"]["predicted_ms"] > 0


def test_a_run_that_fails_leaves_the_others(monkeypatch):
    def fail(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr(host, "_planned", fail)
    fields = run_method("host", setting(warmup=1, steps=1, limit_bytes=None))
    assert fields["error"] == "planned: RuntimeError: no room"
    assert fields["host"]["fits"]["free"]["step_ms"] > 0
    assert "no room" in report.host([{"step": "x"} | fields])


def test_without_the_package_a_step_is_skipped(monkeypatch, tmp_path):
    def missing(_):
        raise packages.Missing("timm cannot be imported")

    monkeypatch.setitem(packages.STEPS, "vit_large_64x224", missing)
    request = {"step": "vit_large_64x224", "options": {"tiny": True}, "device": "cpu"}
    request |= {"headroom": 1.0, "min_block": None, "plan_seconds": 1.0}
    request |= {"enable": {}, "ballast_slack": None}
    facts = {"machine": None, "options": None}
    record = worker._one(request, {"method": "host"}, facts, None)
    assert record["skipped"] == "timm cannot be imported"
    assert record["error"] is None


def test_the_table_compares_with_the_plain_step():
    def way(step_ms, cpu_ms):
        return {"step_ms": step_ms, "cpu_ms": cpu_ms, "issued_ms": 1.0}

    plain = {"python_loop_ms": 9.0, "free": way(100.0, 80.0), "synced": way(110.0, 80.0)}
    counted = {"operators": 7.0, "remakes": 5.0, "evictions": 2.0, "page_ins": 1.0}
    planned = {
        "python_loop_ms": 9.0,
        "free": way(118.0, 88.0) | {"predicted_ms": 115.0, "per_step": counted},
        "synced": way(132.0, 80.0) | {"predicted_ms": 121.0},
    }
    table = report.host([{"step": "x", "host": {"plain": plain, "planned": planned}}])
    cells = [cell.strip() for cell in table.splitlines()[-1].strip("|").split("|")]
    assert cells == [
        *("x", "planned", "9.0", "118.0", "+18.0 %", "+15.0 %", "+3.0 %", "88.0", "1.10×"),
        *("132.0", "+20.0 %", "+10.0 %", "1.0", "7", "5", "3"),
    ]


def test_a_sample_is_of_what_lms_was_about():
    def cause(*names):
        frames = [("libc", "malloc"), *((host_profile.OURS, name) for name in names)]
        return host_profile._cause([*frames, ("python", "main")])

    hook = "lms::torch::run_operator(lms::torch::OpInfo const&)"
    assert cause() == "beside LMS"
    assert cause("lms::torch::TypedCall<at::Tensor>::run()", hook) == "kernels under the hook"
    assert cause("lms::torch::PilotScope::PilotScope()", hook) == "the hook"
    again = "lms::torch::Lineages::run_calls(lms::torch::Step const&)"
    assert cause("lms::torch::TypedCall<at::Tensor>::run()", again, hook) == "computed again"
    assert cause("lms::torch::BridgeAllocator::allocate(unsigned long)", again) == "computed again"
    assert cause("lms::torch::BridgeAllocator::allocate(unsigned long)", hook) == "memory taken"


def test_samples_are_named_and_counted():
    """Addresses of this very process's libc: what a sample in it is called."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if " r-xp " in line]
    line = next(line for line in maps if "libc.so" in line or "libc-" in line)
    start, _, offset = (int(x, 16) for x in (*line.split()[0].split("-"), line.split()[2]))
    symbols = host_profile.Symbols(line.split()[5])
    index = next(i for i, name in enumerate(symbols.names) if name.startswith("qsort"))
    address = start - offset + symbols.starts[index] + 1
    found = {
        "maps": maps,
        "samples": [[1, 1_500_000, address], [1, 500_000, address], [2, 1_000_000, 4]],
        "calls": [{"name": "cudaEventRecord", "count": 30, "ns": 4_000_000}],
    }
    told = host_profile.summary(found, steps=2)
    assert told["samples"] == 3
    assert told["ms_by_library"] == {"libc": 1.0, "?": 0.5}
    assert told["ms_by_cause"] == {"beside LMS [others]": 1.5}
    assert told["ms_by_thread"] == {"1": 1.0, "2": 0.5}
    assert next(iter(told["ms_by_function"])).startswith("qsort")
    assert told["calls"] == {"cudaEventRecord": {"a_step": 15.0, "ms_a_step": 2.0}}
