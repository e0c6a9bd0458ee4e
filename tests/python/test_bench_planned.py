"""The benchmark harness where plans are concerned: the planned method, loops, comparable runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench_support import (  # noqa: E402, F401
    CPU,
    FACTS,
    GIB,
    STEP,
    record,
    request,
    setting,
)

from bench import methods, planned, records, run, worker  # noqa: E402
from bench.steps import StepOptions, build, takes_branch  # noqa: E402
from bench.suites import DETERMINISTIC, SUITES, WANTED, Job, Run, Suite  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.pinned]


def test_lms_swap_waits_for_the_plan_and_then_times(fake_lms, tmp_path):
    trace = tmp_path / "deep" / "step.trace.json.gz"
    fields = methods.run("lms-swap", setting(plan_seconds=0.25, trace=trace, steps=2))
    assert fake_lms.options == {
        "limit": 2000,
        "plan": "on",
        "plan_seconds": 0.25,
        "recompute": False,
        "plan_cache": "off",
    }
    assert not fake_lms.on
    # The first query comes before any step, so the second step is the one that makes it known.
    assert len(fields["warmup_ms"]) == 2 + planned.PLANNED_STEPS
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


def test_lms_is_the_same_with_recomputation(fake_lms):
    fields = methods.run("lms", setting(steps=2))
    assert fake_lms.options["recompute"] is True
    assert (fields["bytes_recomputed"], fields["drops"], fields["remakes"]) == (500, 4, 3)
    assert (fields["refused"], fields["failed"]) == (4, 2)  # in two steps


def test_weights_are_compared_where_the_plain_run_was_as_long(fake_lms):
    plain = methods.run("plain", setting(warmup=1, steps=2, compared=16))
    plain = record("plain") | json.loads(json.dumps(plain))  # as from a file
    assert len(plain["step_ms_all"]) == 2
    assert list(plain["weights"]) == [str(count) for count in range(1, 17)]
    assert len(set(plain["weights"].values())) == 16
    assert (plain["losses_compared"], plain["weights_equal"]) == (3, True)

    fields = methods.run("lms", setting(steps=2, reference=plain))
    count = len(fields["warmup_ms"]) + 2
    assert fields["weights"] == {count: plain["weights"][str(count)]}
    assert (fields["losses_compared"], fields["weights_equal"]) == (count, True)

    plain["weights"][str(count)] = "0"
    fake_lms.__init__()
    fields = methods.run("lms", setting(steps=2, reference=plain))
    assert (fields["bit_identical"], fields["weights_equal"]) == (True, False)

    fake_lms.__init__()
    fields = methods.run("lms", setting(steps=8, reference=plain))
    assert (fields["bit_identical"], fields["weights_equal"]) == (True, None)


def test_a_failure_after_the_timed_steps_does_not_cost_their_times(fake_lms, monkeypatch):
    def fails(_):
        raise RuntimeError("no room")

    monkeypatch.setattr(planned, "fingerprint", fails)
    asked = {"method": "lms", "limit_bytes": 2000, "steps": 2}
    result = worker._one(request([]), asked, FACTS, None)
    assert result["error"] == "RuntimeError: no room"
    assert len(result["step_ms_all"]) == 2


def test_steps_that_turn_out_to_be_others_are_no_planned_ones(fake_lms):
    # Queries 5 to 7 are the planned warm-up's without it; one more step is needed, then.
    fake_lms.diverges_at = {5}
    fields = methods.run("lms-swap", setting(steps=1))
    assert len(fields["warmup_ms"]) == 3 + planned.PLANNED_STEPS
    fake_lms.__init__()
    fake_lms.diverges_at = {7 + planned.PLANNED_STEPS}  # one of the timed steps
    fields = methods.run("lms-swap", setting(steps=3))
    assert (fields["plan_steps"], fields["divergences"]) == (2, 1)


def test_no_step_is_timed_while_two_plans_are_compared(fake_lms, monkeypatch):
    fake_lms.on_trial_until = 20
    fields = methods.run("lms-swap", setting(steps=1))
    assert len(fields["warmup_ms"]) == 19  # a query before the first
    fake_lms.__init__()
    fake_lms.on_trial_until = 10**6
    monkeypatch.setattr(planned, "MOST_STEPS", 15)
    assert len(methods.run("lms-swap", setting(steps=1))["warmup_ms"]) == 15


def test_without_a_plan_the_record_says_so(fake_lms, monkeypatch, tmp_path):
    fake_lms.plans = False
    monkeypatch.setattr(planned, "MOST_STEPS", 5)
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

    monkeypatch.setattr(planned, "run_steps", out_of_memory)
    asked = {"method": "lms-swap", "limit_bytes": 2000}
    result = worker._one(request([]), asked, FACTS, None)
    assert result["error"] == "OutOfMemoryError: too large"
    assert result["stats"]["plan.peak"] == 1800
    assert not fake_lms.on


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
                Path(each["trace"]).write_text("")
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
        swap = records.read(out / f"{STEP}.lms-swap.{ratio}x.json")
        assert swap["over_reactive"] == 0.75
    assert made[0]["method"] == "plain"
    assert (made[0]["warmup"], made[0]["steps"]) == (4, 16)
    assert all(each["reference"].endswith(f"{STEP}.plain.json") for each in made[2:])


def test_only_a_run_that_records_a_trace_replaces_the_one_there_is(tmp_path):
    out, traces = tmp_path / "out", tmp_path / "traces"
    traces.mkdir()
    trace = traces / f"{STEP}.trace.json.gz"
    trace.write_text("of an earlier call")

    def call(methods: str, *, fails: bool = False) -> None:
        bench = bench_of(
            out, "--suite", "planned", "--step", STEP, "--methods", methods, "--traces", str(traces)
        )
        work_of(bench, [])
        if fails:
            bench._work = lambda asked, timeout: "the process ended with status 1"
        for job in run._chosen(bench.arguments).jobs:
            bench.run(job)

    call("plain,lms-reactive")
    assert trace.read_text() == "of an earlier call"
    call("lms-swap")
    assert trace.read_text() == ""
    # What a run that failed did not record is not to be taken for its own.
    call("lms-swap", fails=True)
    assert not trace.exists()


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


def test_the_recompute_suite_has_the_wanted_rows_first_and_compares_bits():
    jobs = SUITES["recompute"].jobs
    known = [(job.step, each) for job in jobs for each in job.runs]
    rows = [(step, each.ratio) for step, each in known if each.method == "lms"]
    wanted = [(step, ratio) for step, ratios in WANTED.items() for ratio in ratios]
    variants = [(variant, 2.0) for variant in DETERMINISTIC.values()]
    assert len(wanted) == 28
    assert rows == wanted + variants
    last_wanted = max(i for i, (step, each) in enumerate(known) if (step, each.ratio) in wanted)
    assert {each.method for _, each in known[:35]} == {"plain", "lms"}
    assert last_wanted > 35  # swaps come after, at one of the same ratios
    for method in ("checkpoint", "save_on_cpu", "lms-swap"):
        assert {step for step, each in known if each.method == method} == set(WANTED)
    assert set(run.STEP_NAMES) >= {step for step, _ in known}
    # Long enough for the weights after a planned run's last step.
    assert all(each.compared == 56 for _, each in known if each.method == "plain")


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
    (plain, limited) = run._chosen(given).jobs
    assert plain.runs[0].method == "plain"
    assert limited.runs == (Run("lms-swap", ratio=2.0),)
    assert given.ballast_slack == 3 * GIB // 2
    assert run.parse_arguments(["--step", STEP, "--no-ballast"]).ballast_slack is None
    given = run.parse_arguments(["--suite", "loops", "--methods", "plain,lms-swap", "--tiny"])
    assert given.methods == ("plain", "lms-swap")
    assert len(run._chosen(given).jobs) == 4


@pytest.mark.parametrize(("suite", "method"), [("planned", "lms-swap"), ("recompute", "lms")])
@pytest.mark.usefixtures("forked_python")
def test_the_real_engine_plans_a_tiny_step_and_keeps_the_bits(tmp_path, suite, method):
    ratio = "1.25" if method == "lms-swap" else "1.5"
    out, traces = tmp_path / "out", tmp_path / "traces"
    arguments = ["--suite", suite, "--tiny", "--device", "cpu", "--step", STEP]
    arguments += ["--methods", f"plain,{method}", "--ratios", ratio, "--plan-seconds", "0.2"]
    arguments += ["--traces", str(traces), "--out", str(out)]
    assert run.main(arguments) == 0
    result = records.read(out / f"{STEP}.tiny.{method}.{ratio}x.json")
    assert result["error"] is None
    assert result["planned"] is True
    assert result["bit_identical"] is True
    assert result["plan_steps"] == len(result["step_ms_all"]) == planned.TIMED_STEPS
    assert result["divergences"] == 0
    assert 0 < result["plan_peak"] <= result["limit_bytes"]
    assert result["allocated_peak"] <= result["limit_bytes"]
    assert result["weights_equal"] is (True if suite == "recompute" else None)
    assert result["bytes_out"] > 0 or result["remakes"] > 0
    assert (traces / f"{STEP}.tiny.trace.json.gz").stat().st_size > 100
