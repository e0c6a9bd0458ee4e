"""The benchmark harness: records, comparison, methods on tiny steps, suites, budget, tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench_support import CPU, STEP, record, request  # noqa: E402

from bench import methods, packages, planned, records, report, run, worker  # noqa: E402
from bench.methods import METHODS, Setting  # noqa: E402
from bench.steps import STEPS, StepOptions  # noqa: E402
from bench.suites import SUITES, Run  # noqa: E402
from bench.timing import step_count  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.pinned]

SHORT = ["--tiny", "--device", "cpu", "--steps", "2", "--warmup", "2"]


def setting(**changes) -> Setting:
    fields = {"step": STEP, "options": StepOptions(tiny=True), "device": CPU, "min_block": "4KiB"}
    return Setting(**(fields | {"warmup": 2, "steps": 2} | changes))


class FakeLms:
    """The package's API as a double: a fixed traffic per query, and a record of the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.limits: list[int | None] = []
        self.on = False
        self.queries = 0
        self.options: dict[str, object] = {}

    def enable(self, limit, device, min_block, **options) -> None:
        assert not self.on
        self.on = True
        self.calls.append("enable")
        self.limits.append(limit)
        self.options = options

    def disable(self) -> None:
        assert self.on
        self.on = False
        self.calls.append("disable")

    def is_enabled(self) -> bool:
        return self.on

    def memory_stats(self) -> dict[str, int]:
        assert self.on
        self.queries += 1
        return {
            "bytes_out": 600 * self.queries,
            "bytes_in": 400 * self.queries,
            "device.bytes.peak": 77,
            "host.bytes.peak": 55,
            "file.bytes.peak": 33,
            "limit": 99,
        }


@pytest.fixture
def fake_lms(monkeypatch) -> FakeLms:
    fake = FakeLms()
    monkeypatch.setattr(methods, "_lms", lambda: fake)
    return fake


def test_names_of_steps_and_methods_agree_with_the_command_line():
    assert set(run.STEP_NAMES) == STEPS.keys() | packages.STEPS.keys()
    assert set(run.METHOD_NAMES) == set(METHODS)


@pytest.mark.usefixtures("forked_python")
def test_single_run_writes_the_plain_run_and_the_method(tmp_path):
    arguments = ["--step", STEP, "--method", "checkpoint", *SHORT, "--out", str(tmp_path)]
    assert run.main(arguments) == 0
    results = {r["method"]: r for r in records.read_all(tmp_path)}
    assert set(results) == {"plain", "checkpoint"}
    for result in results.values():
        assert set(result) == set(records.FIELDS)
        assert result["error"] is None
        assert len(result["step_ms_all"]) == 2
        assert len(result["losses"]) == 4
        assert result["machine"]["torch"] == torch.__version__
        assert result["options"]["tiny"] is True
        assert result["predicted_overhead"] is None
        assert result["bound_overhead"] is None
    plain, other = results["plain"], results["checkpoint"]
    assert plain["plain_deterministic"] is True
    assert plain["overhead"] == 0
    assert plain["allocated_peak"] > 100_000
    assert other["bit_identical"] is True
    assert other["losses_compared"] == 4
    assert other["in_memory_ms"] == plain["step_ms"]
    assert other["overhead"] == pytest.approx(other["step_ms"] / plain["step_ms"] - 1)


@pytest.mark.usefixtures("forked_python")
def test_a_reference_replaces_the_plain_run_and_a_file_is_taken_as_named(tmp_path):
    given = record("plain", in_memory_ms=5.0, losses=["0x1p0"] * 4, plain_deterministic=True)
    records.write(given | {"allocated_peak": 1000}, tmp_path / "given.json")
    out = tmp_path / "mine.json"
    arguments = ["--step", STEP, "--method", "checkpoint", *SHORT, "--out", str(out)]
    assert run.main([*arguments, "--reference", str(tmp_path / "given.json")]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["given.json", "mine.json"]
    result = records.read(out)
    assert result["in_memory_ms"] == 5.0
    assert result["bit_identical"] is False


def test_offload_counts_what_it_moves_and_is_compared():
    reference = records.empty(STEP, "plain") | methods.run("plain", setting())
    fields = methods.run("save_on_cpu", setting(reference=reference))
    assert fields["bytes_out"] == fields["bytes_in"] > 100_000
    # What save_on_cpu gives back is contiguous: where kernels go by the layout, bits may differ.
    assert fields["losses"][0] == reference["losses"][0]
    assert isinstance(fields["bit_identical"], bool)
    assert len(fields["losses"]) == 2 + 1 + 2


def test_lms_fits_alternates_and_is_compared(fake_lms):
    reference = records.empty(STEP, "plain") | methods.run("plain", setting(steps=8))
    fields = methods.run("lms-fits", setting(reference=reference))
    assert fake_lms.calls == ["enable", "disable"] * methods.PAIRS
    assert fake_lms.limits == [None] * methods.PAIRS
    assert len(fields["pair_ratios"]) == methods.PAIRS
    assert len(fields["step_ms_all"]) == 2 * methods.PAIRS
    assert fields["losses_compared"] == 10
    assert fields["bit_identical"] is True
    assert fields["limit_bytes"] == 99
    assert (fields["bytes_out"], fields["bytes_in"]) == (300, 200)


def test_lms_reactive_passes_the_limit_and_reports_traffic_per_step(fake_lms):
    reference = records.empty(STEP, "plain") | methods.run("plain", setting())
    reference["allocated_peak"] = 3000
    fields = methods.run("lms-reactive", setting(limit_bytes=2000, reference=reference))
    assert fake_lms.limits == [2000]
    assert fake_lms.options == {"plan": "off", "plan_cache": "off"}
    assert not fake_lms.on
    assert (fields["bytes_out"], fields["bytes_in"], fields["bytes_recomputed"]) == (300, 200, 0)
    assert (fields["allocated_peak"], fields["host_peak"], fields["file_peak"]) == (77, 55, 33)
    assert fields["ratio"] == 1.5
    assert fields["bit_identical"] is True


def test_lms_is_disabled_when_a_step_fails(fake_lms, monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("too large")

    for module in (methods, planned):
        monkeypatch.setattr(module, "run_steps", out_of_memory)
    for method in ("lms-reactive", "lms", "lms-swap", "lms-fits"):
        with pytest.raises(torch.OutOfMemoryError):
            methods.run(method, setting(limit_bytes=2000))
        assert not fake_lms.on


def short_request(runs: list[dict], **changes) -> dict:
    return request([{"warmup": 1, "steps": 1} | run for run in runs], **changes)


def test_a_failed_run_is_recorded_and_the_next_goes_on(tmp_path, monkeypatch):
    def out_of_memory(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(METHODS, "save_on_cpu", out_of_memory)
    runs = [
        {"method": name, "out": str(tmp_path / f"{name}.json")}
        for name in ("plain", "save_on_cpu", "checkpoint")
    ]
    file = tmp_path / "request"
    file.write_text(json.dumps(short_request(runs)))
    worker.main(str(file))
    results = {r["method"]: r for r in records.read_all(tmp_path)}
    assert results["save_on_cpu"]["error"] == "OutOfMemoryError: CUDA out of memory"
    assert results["save_on_cpu"]["step_ms"] is None
    assert results["checkpoint"]["error"] is None
    assert results["checkpoint"]["bit_identical"] is True


def test_a_ratio_becomes_a_limit_and_needs_a_peak(fake_lms):
    run_asked = {"method": "lms-reactive", "ratio": 2.0, "warmup": 1, "steps": 1}
    reference = records.empty(STEP, "plain") | methods.run("plain", setting())
    reference["allocated_peak"] = 4000
    result = worker._one(short_request([]), run_asked, {}, reference)
    assert (result["error"], result["limit_bytes"], fake_lms.limits) == (None, 2000, [2000])
    failed = worker._one(short_request([]), run_asked, {}, None)
    assert "give a limit" in failed["error"]


def test_errors_name_the_one_that_came_first():
    try:
        try:
            raise ValueError("first")
        finally:
            raise RuntimeError("second")
    except RuntimeError as error:
        assert worker._describe(error) == "ValueError: first | then: RuntimeError: second"


@pytest.mark.parametrize(
    ("losses", "deterministic", "expected", "compared"),
    [
        (["0x1p0", "0x1p1"], True, True, 2),
        (["0x1p0"], True, True, 1),
        (["0x1p0", "0x1.8p1"], True, False, 2),
        (["0x1p0", "0x1.8p1"], False, None, 2),
    ],
)
def test_losses_are_compared_over_the_steps_in_common(losses, deterministic, expected, compared):
    reference = record(
        "plain", losses=["0x1p0", "0x1p1", "0x1p2"], plain_deterministic=deterministic
    )
    other = record("lms", losses=losses)
    records.compare(other, reference)
    assert other["bit_identical"] is expected
    assert other["losses_compared"] == compared


def test_losses_that_are_not_numbers_prove_nothing():
    reference = record("plain", losses=["nan"], plain_deterministic=True)
    other = record("lms", losses=["nan"])
    records.compare(other, reference)
    assert other["bit_identical"] is None


def test_link_floor_adds_both_directions_to_the_step():
    result = records.finish(
        record(
            "lms-reactive",
            in_memory_ms=50.0,
            step_ms=165.0,
            bytes_out=2_000_000_000,
            bytes_in=3_000_000_000,
            link_out=50e9,
            link_in=50e9,
        )
    )
    assert result["link_floor_ms"] == pytest.approx(150)
    assert result["over_floor"] == pytest.approx(1.1)
    assert result["overhead"] == pytest.approx(2.3)


def test_commit_comes_from_the_environment_without_git(monkeypatch, tmp_path):
    monkeypatch.setenv("LMS_COMMIT", "abc")
    assert records.commit() == ("abc", None)
    monkeypatch.delenv("LMS_COMMIT")
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert records.commit() == ("unknown", None)
    (tmp_path / ".commit").write_text("def\n")
    assert records.commit() == ("def", None)


def test_step_count_stays_within_its_bounds():
    assert step_count(54) == 20
    assert step_count(600) == 10
    assert step_count(5000) == 5


def test_bytes_on_the_command_line():
    assert run.parse_bytes("5.5GiB") == 11 * 2**29
    assert run.parse_bytes("4096") == 4096
    with pytest.raises(SystemExit):
        run.parse_arguments(["--step", STEP, "--method", "lms-reactive", "--limit", "5 apples"])
    with pytest.raises(SystemExit):
        run.parse_arguments(["--step", STEP, "--method", "lms-reactive"])


def test_suites_have_their_references_first_and_shrink():
    for suite in SUITES.values():
        known: set[str] = set()
        for job in suite.jobs:
            for each in job.runs:
                if each.method in ("plain", "host"):  # the latter has a plain run of its own
                    known.add(job.step)
                assert job.step in known
                assert each.method in METHODS
            if any(each.method in methods.OWN_PROCESS for each in job.runs):
                assert len(job.runs) == 1
    for job in SUITES["reactive"].shrunk().jobs:
        assert all(each.limit_bytes is None for each in job.runs)
    assert Run("lms-reactive", limit_bytes=11 * 2**29).label() == "lms-reactive.5.5GiB"


def fake_bench(monkeypatch, tmp_path, clock: list[float], *options: str) -> run.Bench:
    monkeypatch.setattr(run.time, "monotonic", lambda: clock[0])
    bench = run.Bench(
        run.parse_arguments(["--suite", "reactive", "--out", str(tmp_path), *options])
    )
    return bench


def test_the_budget_skips_what_would_not_fit(monkeypatch, tmp_path):
    clock = [0.0]
    bench = fake_bench(monkeypatch, tmp_path, clock, "--budget", "100")

    def work(asked, timeout):
        clock[0] += 60
        for each in asked["runs"]:
            records.write(record(each["method"], step_ms=1.0), Path(each["out"]))
        return "done"

    monkeypatch.setattr(bench, "_work", work)
    jobs = SUITES["reactive"].jobs
    for job in jobs[:3]:
        bench.run(job)
    assert len(bench.results) == len(jobs[0].runs) + 1  # 50 s, 30 s; then nothing is left
    assert len(bench.skipped) == 1
    assert "lms-reactive.3GiB" in bench.skipped[0]


def test_a_process_that_dies_leaves_failed_records(monkeypatch, tmp_path):
    bench = fake_bench(monkeypatch, tmp_path, [0.0])
    monkeypatch.setattr(
        run.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-11, stdout="x")
    )
    bench.run(SUITES["reactive"].jobs[1])
    (result,) = records.read_all(tmp_path)
    assert result["error"] == "the process ended with status -11"
    assert result["limit_bytes"] == 11 * 2**29
    assert set(result) == set(records.FIELDS)


def test_tables(tmp_path):
    machine = {"gpu": "GPU", "cpu": "CPU", "torch": "2.11.0", "driver": "1"}
    results = [
        record("save_on_cpu", error="OutOfMemoryError: no room\nlong tail", machine=machine),
        record(
            "lms-reactive",
            machine=machine,
            limit_bytes=3 * 2**30,
            step_ms=300.04,
            overhead=0.055,
            over_floor=1.049,
            bit_identical=False,
        ),
        record("plain", machine=machine, step_ms=54.2, plain_deterministic=False),
    ]
    for result in results:
        records.write(result, tmp_path / f"{result['method']}.json")
    (tmp_path / "other.json").write_text('{"opinfo": 1}')
    text = report.markdown(records.read_all(tmp_path))
    lines = text.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:5]] == ["plain", "lms-reactive", "save_on_cpu"]
    assert "| 3.00 |" in lines[3]
    assert "| +5.5 % |" in lines[3]
    assert "| 1.05× |" in lines[3]
    assert lines[3].endswith("| NO |")
    assert lines[2].endswith("| plain varies |")
    assert "Measured on GPU, CPU, PyTorch 2.11.0, driver 1." in lines
    assert any("failed: OutOfMemoryError: no room" in line for line in lines)
    assert "long tail" not in text
    assert "lms-reactive" in report.terminal(results)


@pytest.mark.usefixtures("forked_python")
def test_real_engine_under_a_limit_keeps_the_bits(tmp_path):
    arguments = ["--step", STEP, "--method", "lms-reactive", "--ratio", "1.5", *SHORT]
    assert run.main([*arguments, "--out", str(tmp_path)]) == 0
    results = {r["method"]: r for r in records.read_all(tmp_path)}
    limited = results["lms-reactive"]
    assert limited["error"] is None
    assert limited["bit_identical"] is True
    assert limited["bytes_out"] > 0
    assert limited["allocated_peak"] <= limited["limit_bytes"]
