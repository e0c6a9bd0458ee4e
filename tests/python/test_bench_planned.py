"""The benchmark harness where plans are concerned: the planned method, loops, ballast, bounds."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import ballast, methods, records, report, run, worker  # noqa: E402
from bench.ballast import Ballast  # noqa: E402
from bench.methods import Setting  # noqa: E402
from bench.steps import StepOptions, build, takes_branch  # noqa: E402
from bench.suites import SUITES, Job, Run, Suite  # noqa: E402

STEP = "resnet50_bf16_256x224"
CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny steps lose more to waiting for threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def setting(**changes) -> Setting:
    fields = {"step": STEP, "options": StepOptions(tiny=True), "device": CPU, "min_block": "4KiB"}
    return Setting(**(fields | {"limit_bytes": 2000} | changes))


def record(method: str, **fields) -> records.Record:
    return records.empty(STEP, method) | fields


class FakeLms:
    """The package's API as a double that learns a step, plans it and follows the plan.

    A step is two queries of the statistics at most apart: the harness asks once after each.
    """

    def __init__(self, *, known_after: int = 3, plans: bool = True) -> None:
        self.known_after = known_after
        self.plans = plans
        self.on = False
        self.options: dict[str, object] = {}
        self.queries = 0
        self.waits: list[int] = []
        self.resets: list[int] = []
        self.traces: list[str] = []
        self.diverges_at: set[int] = set()
        self.planned = 0
        self.followed = 0
        self.divergences = 0

    def enable(self, limit, device, min_block, **options) -> None:
        self.on = True
        self.options = {"limit": limit} | options

    def disable(self) -> None:
        self.on = False

    def is_enabled(self) -> bool:
        return self.on

    def wait_for_plan(self, device) -> None:
        assert device == "cpu"
        self.waits.append(self.queries)
        self.planned = int(self.plans)

    def reset_peak_memory_stats(self, device) -> None:
        self.resets.append(self.queries)

    def save_trace(self, path, device) -> None:
        assert self.on
        self.traces.append(path)
        Path(path).write_text("a trace")

    def memory_stats(self) -> dict[str, int]:
        assert self.on
        self.queries += 1
        if self.planned:
            self.followed += 1
            self.divergences += self.queries in self.diverges_at
        return {
            "bytes_out": 600 * self.queries,
            "bytes_in": 400 * self.queries,
            "device.bytes.peak": 1900,
            "device.reserved.peak": 1950,
            "plan.shapes": int(self.queries >= self.known_after),
            "plan.planned": self.planned,
            "plan.steps": self.followed,
            "plan.refined": int(self.followed > 0),
            "plan.divergences": self.divergences,
            "plan.predicted_us": 12_500,
            "plan.peak": 1800,
            "plan.arena": 1890,
            "plan.arena_bound": 1850,
            "arena.misplaced": 7 * self.queries,
        }


@pytest.fixture
def fake_lms(monkeypatch) -> FakeLms:
    fake = FakeLms()
    monkeypatch.setattr(methods, "_lms", lambda: fake)
    return fake


def test_lms_swap_waits_for_the_plan_and_then_times(fake_lms, tmp_path):
    trace = tmp_path / "deep" / "step.trace.json.gz"
    fields = methods.run("lms-swap", setting(plan_seconds=0.25, trace=trace, steps=2))
    assert fake_lms.options == {"limit": 2000, "plan": "on", "plan_seconds": 0.25}
    assert not fake_lms.on
    # The first query comes before any step, so the second step is the one that makes it known.
    assert len(fields["warmup_ms"]) == 2 + methods.PLANNED_STEPS
    assert fake_lms.waits[0] == 3
    assert fake_lms.resets == [1 + len(fields["warmup_ms"])]
    assert len(fields["step_ms_all"]) == 2
    assert len(fields["losses"]) == len(fields["warmup_ms"]) + 2
    assert (fields["planned"], fields["plan_steps"], fields["divergences"]) == (True, 2, 0)
    assert fields["misplaced"] == 14
    assert fields["predicted_ms"] == 12.5
    assert (fields["plan_peak"], fields["plan_arena"], fields["plan_arena_bound"]) == (
        1800,
        1890,
        1850,
    )
    assert (fields["bytes_out"], fields["bytes_in"]) == (600, 400)
    assert fields["allocated_peak"] == 1900
    assert fake_lms.traces == [str(trace)]
    assert trace.exists()


def test_steps_that_turn_out_to_be_others_are_no_planned_ones(fake_lms):
    # Queries 5 to 7 are the planned warm-up's without it; one more step is needed, then.
    fake_lms.diverges_at = {5}
    fields = methods.run("lms-swap", setting(steps=1))
    assert len(fields["warmup_ms"]) == 3 + methods.PLANNED_STEPS
    fake_lms.__init__()
    fake_lms.diverges_at = {9}
    fields = methods.run("lms-swap", setting(steps=3))
    assert (fields["plan_steps"], fields["divergences"]) == (2, 1)


def test_without_a_plan_the_record_says_so(fake_lms, monkeypatch, tmp_path):
    fake_lms.plans = False
    monkeypatch.setattr(methods, "MOST_STEPS", 5)
    reference = record(
        "plain", allocated_peak=3000, in_memory_ms=5.0, losses=["0x1p0"], plain_deterministic=True
    )
    asked = {"method": "lms-swap", "limit_bytes": 2000, "trace": str(tmp_path / "trace.json.gz")}
    result = worker._one(request([]), asked, FACTS, reference)
    assert result["error"].startswith("NoPlan: 0 steps out of 5 ")
    assert "1 kinds of step known, 0 planned" in result["error"]
    assert result["planned"] is False
    assert result["step_ms"] is None
    assert len(result["warmup_ms"]) == len(result["losses"]) == 5
    assert result["bit_identical"] is False  # five losses, though they lead to no time
    assert result["stats"]["plan.shapes"] == 1
    assert (tmp_path / "trace.json.gz").exists()
    assert not fake_lms.on


def test_a_trace_that_cannot_be_saved_costs_nothing_else(fake_lms, tmp_path, monkeypatch):
    def save_trace(path, device):
        raise RuntimeError("no step is known yet")

    monkeypatch.setattr(fake_lms, "save_trace", save_trace)
    fields = methods.run("lms-swap", setting(steps=1, trace=tmp_path / "trace"))
    assert fields["step_ms"] > 0


def test_a_failed_step_leaves_the_statistics(fake_lms, monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(methods, "run_steps", out_of_memory)
    asked = {"method": "lms-swap", "limit_bytes": 2000}
    result = worker._one(request([]), asked, FACTS, None)
    assert result["error"] == "OutOfMemoryError: too large"
    assert result["stats"]["plan.peak"] == 1800
    assert not fake_lms.on


FACTS = {"machine": {"gpu": None, "torch": "2"}, "options": {"tiny": True}}


def request(runs: list[dict], **changes) -> dict:
    fields = {
        "step": STEP,
        "options": {"tiny": True},
        "device": "cpu",
        "headroom": 1.0,
        "min_block": "4KiB",
        "plan_seconds": 0.5,
        "ballast_slack": None,
        "reference": None,
        "runs": runs,
    }
    return fields | changes


def test_what_follows_from_a_plan():
    result = records.finish(
        record(
            "lms-swap",
            in_memory_ms=50.0,
            step_ms=60.0,
            predicted_ms=58.0,
            limit_bytes=1000,
            allocated_peak=950,
            reserved_peak=990,
        )
    )
    assert result["predicted_overhead"] == pytest.approx(0.16)
    assert result["allocated_of_limit"] == 0.95
    assert result["reserved_of_limit"] == 0.99
    assert result["bound_overhead"] is None


# Loops


def test_loop_shapes_changes_its_shape_every_five_iterations():
    step = build("loop_shapes", StepOptions(tiny=True), CPU)
    shapes = []
    for _ in range(12):
        step()
        shapes.append(tuple(step.inputs.shape))
    assert len(set(shapes)) == 2
    assert shapes[:5] == [shapes[0]] * 5
    assert shapes[5:10] == [shapes[5]] * 5
    assert shapes[10] == shapes[0] != shapes[5]


def test_loop_branch_takes_a_block_of_layers_at_times_and_in_every_run_alike():
    step = build("loop_branch", StepOptions(tiny=True), CPU)
    weight = step.model.extra.conv1.weight
    for iteration in range(6):
        before = weight.detach().clone()
        step()
        trained = weight.grad is not None
        assert trained == takes_branch(iteration)
        assert torch.equal(weight, before) != trained
    coins = [takes_branch(iteration) for iteration in range(60)]
    assert 20 <= sum(coins) <= 40
    # Either kind comes twice in a row, which is what makes a step known.
    pairs = set(zip(coins, coins[1:], strict=False))
    assert len(pairs) == 4


def test_loops_are_timed_by_their_mean_over_the_same_iterations(fake_lms):
    changes = {"step": "loop_branch", "warmup": 4, "steps": 6}
    plain = records.empty("loop_branch", "plain") | methods.run("plain", setting(**changes))
    swap = methods.run("lms-swap", setting(**changes, reference=plain))
    reactive = methods.run("lms-reactive", setting(**changes, reference=plain))
    for fields in (plain, swap, reactive):
        assert len(fields["step_ms_all"]) == 6
        assert fields["step_ms"] == pytest.approx(sum(fields["step_ms_all"]) / 6)
    assert plain["in_memory_ms"] == plain["step_ms"]
    assert len(swap["warmup_ms"]) == 4
    assert (swap["losses_compared"], swap["bit_identical"]) == (10, True)
    assert (reactive["losses_compared"], reactive["bit_identical"]) == (10, True)


def test_a_loop_without_a_plan_is_a_result(fake_lms):
    fake_lms.plans = False
    changes = {"step": "loop_shapes", "warmup": 4, "steps": 2}
    fields = methods.run("lms-swap", setting(**changes))
    assert fields["planned"] is False
    assert fields["plan_steps"] == 0
    assert "predicted_ms" not in fields


# The ballast


class FakeRuntime:
    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.held = 0
        self.cleared = 0

    def cudaMalloc(self, address, size) -> int:  # noqa: N802
        if self.status == 0:
            self.held += size.value
        return self.status

    def cudaFree(self, address) -> int:  # noqa: N802
        self.held = 0
        return 0

    def cudaGetLastError(self) -> int:  # noqa: N802
        self.cleared += 1
        return self.status


@pytest.fixture
def fake_device(monkeypatch) -> SimpleNamespace:
    """A device of 80 GiB of which half a GiB is in use."""
    device = SimpleNamespace(runtime=FakeRuntime(), used=GIB // 2)

    def mem_get_info(_):
        return 80 * GIB - device.used - device.runtime.held, 80 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    return device


def test_the_ballast_leaves_the_limit_and_the_slack(fake_device):
    held = Ballast(CPU, 5 * GIB, GIB, fake_device.runtime)
    assert fake_device.runtime.held == held.bytes == 80 * GIB - GIB // 2 - 6 * GIB
    fake_device.used += 4 * GIB
    held.sample()
    fake_device.used -= 3 * GIB
    held.sample()
    assert held.fields() == {
        "ballast_bytes": 80 * GIB - GIB // 2 - 6 * GIB,
        "ballast_slack_bytes": GIB,
        "device_used_before": GIB // 2,
        "device_used_peak": GIB // 2 + 4 * GIB,
    }
    held.release()
    held.release()
    assert fake_device.runtime.held == 0


def test_no_ballast_where_no_more_is_free_and_an_error_where_none_can_be_had(fake_device):
    with Ballast(CPU, 80 * GIB, GIB, fake_device.runtime) as held:
        assert (held.bytes, fake_device.runtime.held) == (0, 0)
    fake_device.runtime.status = 2
    with pytest.raises(RuntimeError, match="CUDA error 2"):
        Ballast(CPU, 5 * GIB, GIB, fake_device.runtime)
    assert fake_device.runtime.cleared == 1


def test_runs_under_lms_with_a_limit_take_the_ballast_and_give_it_back(
    fake_device, fake_lms, monkeypatch
):
    monkeypatch.setattr(ballast, "_runtime", lambda: fake_device.runtime)
    monkeypatch.setattr(worker, "_takes_ballast", lambda *_: True)

    def use_more(step, count, device, after_each=None):
        assert fake_device.runtime.held > 0
        fake_device.used = 3 * GIB
        return real_run_steps(step, count, device, after_each)

    real_run_steps = methods.run_steps
    monkeypatch.setattr(methods, "run_steps", use_more)
    asked = {"method": "lms-swap", "limit_bytes": 4 * GIB, "steps": 1}
    result = worker._one(request([], ballast_slack=GIB), asked, FACTS, None)
    assert result["error"] is None
    assert result["ballast_bytes"] == 80 * GIB - GIB // 2 - 5 * GIB
    assert result["device_used_peak"] == 3 * GIB
    assert fake_device.runtime.held == 0


def test_only_limited_runs_on_a_gpu_take_a_ballast():
    gpu = setting(device=torch.device("cuda:0"))
    asked = request([], ballast_slack=GIB)
    assert worker._takes_ballast(asked, gpu, "lms-swap")
    assert worker._takes_ballast(asked, gpu, "lms-reactive")
    assert not worker._takes_ballast(asked, gpu, "plain")
    assert not worker._takes_ballast(asked, setting(), "lms-swap")
    assert not worker._takes_ballast(request([]), gpu, "lms-swap")


# Comparable runs


def test_plain_runs_of_other_machines_or_options_are_not_compared_with():
    def plain(**changes):
        facts = {
            "machine": {"gpu": "A", "torch": "2"},
            "options": {
                "tiny": True,
                "optimizer": "default",
                "attention": "flash",
                "deterministic": True,
                "headroom": 1.0,
            },
        }
        return record("plain") | {k: v | changes.get(k, {}) for k, v in facts.items()}

    ours = plain(options={"headroom": None})
    assert worker._incomparable(plain(), ours) is None
    assert worker._incomparable(record("plain"), ours) is None
    assert "machine" in worker._incomparable(plain(machine={"gpu": "B"}), ours)
    assert "options" in worker._incomparable(plain(options={"optimizer": "fused"}), ours)
    assert "failed" in worker._incomparable(plain() | {"error": "x"}, ours)


def bench_of(tmp_path, *options: str) -> run.Bench:
    return run.Bench(run.parse_arguments([*options, "--out", str(tmp_path)]))


def work_of(bench, made: list[dict]):
    """Stands for a worker: writes a record, and a trace where one is asked for."""

    def work(asked, timeout):
        for each in asked["runs"]:
            made.append(each | {"reference": asked["reference"]})
            ms = {"plain": 50.0, "lms-swap": 60.0, "lms-reactive": 80.0}.get(each["method"], 70.0)
            limit = None if each["ratio"] is None else int(1000 / each["ratio"])
            result = records.empty(asked["step"], each["method"])
            result.update(step_ms=ms, limit_bytes=limit, ratio=each["ratio"])
            records.write(result, Path(each["out"]))
            if each["trace"]:
                Path(each["trace"]).parent.mkdir(parents=True, exist_ok=True)
                Path(each["trace"]).touch()
        return "done"

    bench._work = work


def test_a_planned_suite_leaves_a_table_traces_and_the_comparison(tmp_path):
    out, traces = tmp_path / "out", tmp_path / "traces"
    bench = bench_of(out, "--suite", "planned", "--step", STEP, "--traces", str(traces))
    made: list[dict] = []
    work_of(bench, made)
    for job in run._chosen(bench.arguments).jobs:
        bench.run(job)
    names = {f"{STEP}.{label}.json" for label in ("plain", "save_on_cpu")}
    for method in ("lms-swap", "lms-reactive"):
        names |= {f"{STEP}.{method}.{ratio}x.json" for ratio in ("1.25", "2")}
    assert {file.name for file in out.iterdir()} == names
    traced = [each["method"] for each in made if each["trace"]]
    assert traced == ["lms-swap"]
    assert [file.name for file in traces.iterdir()] == [f"{STEP}.trace.json.gz"]
    for ratio in ("1.25", "2"):
        planned = records.read(out / f"{STEP}.lms-swap.{ratio}x.json")
        assert planned["over_reactive"] == 0.75
    assert made[0]["method"] == "plain"
    assert (made[0]["warmup"], made[0]["steps"]) == (4, 16)
    assert all(each["reference"].endswith(f"{STEP}.plain.json") for each in made[2:])


def test_a_selection_of_a_suite_uses_the_plain_run_of_an_earlier_call(tmp_path):
    records.write(record("plain"), tmp_path / f"{STEP}.plain.json")
    bench = bench_of(
        tmp_path, "--suite", "planned", "--step", STEP, "--methods", "lms-swap", "--ratios", "2"
    )
    made: list[dict] = []
    work_of(bench, made)
    (job,) = run._chosen(bench.arguments).jobs
    bench.run(job)
    assert [(each["method"], each["ratio"]) for each in made] == [("lms-swap", 2.0)]
    assert made[0]["reference"] == str(tmp_path / f"{STEP}.plain.json")


def test_suites_can_be_narrowed():
    suite = Suite(
        (
            Job("a", (Run("plain"), Run("checkpoint")), 10.0),
            Job("a", (Run("lms-swap", ratio=2.0),), 20.0),
            Job("a", (Run("lms-swap", ratio=3.0),), 20.0),
            Job("b", (Run("plain"),), 10.0),
        )
    )
    assert suite.only() == suite
    assert [job.step for job in suite.only(steps=["b"]).jobs] == ["b"]
    (job,) = suite.only(steps=["a"], methods=["plain"]).jobs
    assert (job.runs, job.seconds) == ((Run("plain"),), 5.0)
    chosen = suite.only(methods=["plain", "lms-swap"], ratios=[3.0]).jobs
    assert [run.label() for job in chosen for run in job.runs] == ["plain", "lms-swap.3x", "plain"]


def test_the_planned_suite_has_every_row_and_what_matters_first():
    suite = SUITES["planned"]
    limited = [
        (job.step, each.method, each.ratio)
        for job in suite.jobs
        for each in job.runs
        if each.ratio is not None
    ]
    rows = {
        ("unet3d_bf16_192", 2.0),
        ("unet3d_bf16_192", 3.0),
        ("llama1b_adamw_bf16_4x2048", 1.25),
        ("llama1b_adamw_bf16_4x2048", 1.5),
        (STEP, 1.25),
        (STEP, 2.0),
        ("deeplabv3_r101_bf16_16x513", 1.25),
        ("deeplabv3_r101_bf16_16x513", 2.0),
    }
    for method in ("lms-swap", "lms-reactive"):
        assert {(step, ratio) for step, of, ratio in limited if of == method} == rows
    assert len(limited) == 2 * len(rows)
    assert [method for _, method, _ in limited] == ["lms-swap"] * 8 + ["lms-reactive"] * 8
    assert sum(job.seconds for job in suite.jobs) < 600


def test_command_line_of_suites_and_steps():
    def refused(*options: str) -> None:
        with pytest.raises(SystemExit):
            run.parse_arguments(list(options))

    refused()
    refused("--step", "unheard_of")
    refused("--step", f"{STEP},unet3d_bf16_192")
    refused("--step", STEP, "--method", "lms-swap")
    refused("--suite", "planned", "--methods", "magic")
    given = run.parse_arguments(["--step", STEP, "--method", "lms-swap", "--ratio", "2"])
    (plain, planned) = run._chosen(given).jobs
    assert plain.runs[0].method == "plain"
    assert planned.runs == (Run("lms-swap", ratio=2.0),)
    assert given.ballast_slack == 3 * GIB // 2
    assert run.parse_arguments(["--step", STEP, "--no-ballast"]).ballast_slack is None
    given = run.parse_arguments(["--suite", "loops", "--methods", "plain,lms-swap", "--tiny"])
    assert given.methods == ("plain", "lms-swap")
    assert len(run._chosen(given).jobs) == 4


# Tables


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
    assert f"no planned run of {STEP} 4\n" in told
    assert "no planned run of elsewhere 2\n" in told


def test_records_from_before_plans_can_still_be_read(tmp_path):
    old = {"schema": 1, "step": STEP, "method": "lms-reactive", "limit_bytes": GIB}
    (tmp_path / "old.json").write_text(json.dumps(old))
    (result,) = records.read_all(tmp_path)
    assert set(result) == set(records.FIELDS)
    assert (result["limit_bytes"], result["plan_steps"]) == (GIB, None)


def lms_plans() -> bool:
    try:
        return hasattr(importlib.import_module("torch_lms"), "wait_for_plan")
    except (ImportError, OSError):
        return False


@pytest.mark.skipif(not lms_plans(), reason="torch_lms is not built here")
def test_the_real_engine_plans_a_tiny_step_and_keeps_the_bits(tmp_path):
    out, traces = tmp_path / "out", tmp_path / "traces"
    arguments = ["--suite", "planned", "--tiny", "--device", "cpu", "--step", STEP]
    arguments += ["--methods", "plain,lms-swap", "--ratios", "1.25", "--plan-seconds", "0.2"]
    arguments += ["--traces", str(traces), "--out", str(out)]
    assert run.main(arguments) == 0
    result = records.read(out / f"{STEP}.tiny.lms-swap.1.25x.json")
    assert result["error"] is None
    assert result["planned"] is True
    assert result["bit_identical"] is True
    assert result["plan_steps"] == len(result["step_ms_all"]) == methods.TIMED_STEPS
    assert result["divergences"] == 0
    assert 0 < result["plan_peak"] <= result["limit_bytes"]
    assert result["allocated_peak"] <= result["limit_bytes"]
    assert result["bytes_out"] > 0
    assert (traces / f"{STEP}.tiny.trace.json.gz").stat().st_size > 100
