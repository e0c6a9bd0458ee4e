"""The benchmark harness where it measures what recording a step costs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench_support import CPU, STEP, record, setting  # noqa: E402

from bench import methods, recording, records, report, run  # noqa: E402

pytestmark = pytest.mark.pinned


def snapshot(shapes: int = 0, planned: int = 0, steps: int = 0, refined: int = 0, other: int = 0):
    return {
        "plan.shapes": shapes,
        "plan.planned": planned,
        "plan.steps": steps,
        "plan.refined": refined,
        "plan.divergences": other,
        "bytes_out": 0,
        "bytes_in": 0,
        "limit": 4096,
    }


# What the pilot says after each step of a loop that it takes for one, plans, and plans again.
LIFE = [
    (snapshot(), None),
    (snapshot(), "recorded"),
    (snapshot(), "recorded"),
    (snapshot(shapes=1), "found"),
    (snapshot(shapes=1), "tracked"),
    (snapshot(shapes=1), "timed"),
    (snapshot(shapes=1, planned=1), None),
    (snapshot(1, 1, 1), "followed"),
    (snapshot(1, 1, 2), "followed"),
    (snapshot(1, 1, 3), "timed"),
    (snapshot(1, 1, 4, refined=1), "followed"),
    (snapshot(1, 1, 5, refined=1), "followed"),
    (snapshot(1, 1, 6, refined=1), "followed"),
    (snapshot(1, 1, 7, refined=1), "followed"),
]


def test_steps_are_told_by_the_statistics_around_them():
    assert recording.phases_of([stats for stats, _ in LIFE]) == [phase for _, phase in LIFE[1:]]
    diverged = [snapshot(1, 1, 4), snapshot(1, 1, 4, other=1), snapshot(1, 1, 5, other=2)]
    assert recording.phases_of(diverged) == [None, None]
    assert recording.phases_of([snapshot()]) == []


class FakePlanner:
    """The package as a double that goes through `life`, one entry a step, once it is pressed."""

    def __init__(self, life=LIFE) -> None:
        self.life = [stats for stats, _ in life]
        self.plan = "off"
        self.pressed = False
        self.steps = 0
        self.waits = 0
        self.enabled: list[str] = []

    def enable(self, plan: str) -> None:
        self.plan, self.pressed, self.steps = plan, False, 0
        self.enabled.append(plan)

    def press(self, device: torch.device, limit: int) -> None:
        assert (device, limit) == (CPU, 4096)
        self.pressed = True

    def run_step(self) -> torch.Tensor:
        self.steps += self.pressed and self.plan == "on"
        return torch.ones(())

    def step(self, device: str) -> None:
        assert device == "cpu"

    def wait_for_plan(self, device: str) -> None:
        self.waits += 1

    def memory_stats(self):
        stats = self.life[self.steps]
        return stats | {"bytes_out": 10 * self.steps, "bytes_in": 20 * self.steps}


def rounds_of(fake: FakePlanner, monkeypatch, *, rounds: int, seconds: float = 1e9):
    monkeypatch.setattr(recording, "press", fake.press)
    result = recording.Rounds(fake, fake.run_step, CPU, fake.enable)
    result.run(rounds, seconds)
    return result


def test_rounds_alternate_and_end_when_enough_was_followed(monkeypatch):
    fake = FakePlanner()
    done = rounds_of(fake, monkeypatch, rounds=3)
    assert fake.enabled == ["off", "on", "on", "off", "off", "on"]
    phases = done.fields(plain_ms=None)
    counts = {phase: len(of["step_ms_all"]) for phase, of in phases.items()}
    assert counts == {
        "off": 3 * recording.OFF_STEPS,
        "recorded": 6,
        "found": 3,
        "tracked": 3,
        "timed": 6,
        "followed": 18,
    }
    assert list(phases) == list(recording.PHASES)
    assert (phases["off"]["bytes_out"], phases["off"]["bytes_in"]) == (0, 0)
    assert (phases["timed"]["bytes_out"], phases["timed"]["bytes_in"]) == (10, 20)
    assert all(of["overhead"] is None for of in phases.values())
    # Each block has one step before it that is not timed.
    assert len(done.every.losses) == 3 * (1 + recording.OFF_STEPS + 1 + len(LIFE) - 1)


def test_a_loop_that_is_never_known_is_recorded_all_the_while(monkeypatch):
    fake = FakePlanner([(snapshot(), None)] * (recording.MOST_STEPS + 1))
    phases = rounds_of(fake, monkeypatch, rounds=1).fields(plain_ms=None)
    assert set(phases) == {"off", "recorded"}
    assert len(phases["recorded"]["step_ms_all"]) == recording.RECORDED_STEPS


def test_time_ends_the_rounds_but_not_the_first_two(monkeypatch):
    fake = FakePlanner()
    rounds_of(fake, monkeypatch, rounds=5, seconds=-1)
    assert fake.enabled.count("on") == recording.LEAST_ROUNDS


def test_overheads_are_of_medians_within_rounds():
    off, timed = recording._Samples(), recording._Samples()
    nothing = snapshot()
    # The machine becomes slower from round to round; the phase costs 10 % throughout.
    for number, ms in enumerate((10.0, 20.0, 40.0)):
        for _ in range(3):
            off.add(number, ms, nothing, nothing)
        timed.add(number, 1.1 * ms, nothing, nothing)
    fields = timed.fields(off, plain_ms=20.0)
    assert fields["over_off"] == pytest.approx(0.1)
    assert fields["step_ms"] == pytest.approx(22)
    assert fields["overhead"] == pytest.approx(0.1)


def test_a_block_that_does_not_leave_is_said(monkeypatch):
    class Stays:
        @staticmethod
        def evict(tensor: torch.Tensor) -> bool:
            return False

    monkeypatch.setattr(recording.torch.ops, "lms", Stays(), raising=False)
    with pytest.raises(RuntimeError, match="no block could be made to leave"):
        recording.press(CPU, 1 << 20)


def test_the_table_has_a_row_for_every_phase():
    of = {
        "step_ms": 54.321,
        "step_ms_all": [54.0, 55.0],
        "over_off": 0.0123,
        "overhead": None,
        "bytes_out": 0,
        "bytes_in": 2**29,
    }
    result = record("lms-recording", phases={"off": of, "timed": of})
    text = report.recording([record("plain"), result])
    rows = text.splitlines()[2:4]
    assert rows[1] == f"| {STEP} | timed | 2 | 54.32 | +1.23 % | – | 0.00 | 0.5 |"
    assert [row.split(" | ")[1] for row in rows] == ["off", "timed"]


def test_the_real_engine_goes_through_the_phases_with_the_same_bits(tmp_path, monkeypatch):
    # One round is enough to see them all.
    monkeypatch.setattr(recording, "OFF_STEPS", 2)
    monkeypatch.setattr(recording, "FOLLOWED_STEPS", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = records.empty(STEP, "plain") | methods.run("plain", setting(steps=12, warmup=1))
        limit = int(plain["allocated_peak"] / 0.8)
        asked = setting(limit_bytes=limit, steps=1, plan_seconds=0.2, reference=plain)
        fields = methods.run("lms-recording", asked)
    finally:
        torch.set_num_threads(threads)
    phases = fields["phases"]
    assert {"off", "recorded", "found", "timed", "followed"} <= set(phases)
    assert fields["step_ms"] == phases["recorded"]["step_ms"]
    assert phases["timed"]["overhead"] == pytest.approx(
        phases["timed"]["step_ms"] / plain["in_memory_ms"] - 1
    )
    assert fields["losses_compared"] == 13
    assert fields["bit_identical"] is True


def test_the_command_line_knows_the_suite():
    arguments = run.parse_arguments(["--suite", "recording", "--methods", "lms-recording"])
    jobs = run._chosen(arguments).jobs
    assert [(job.step, job.runs[0].ratio) for job in jobs] == [
        ("resnet50_bf16_256x224", 0.8),
        ("llama1b_adamw_bf16_4x2048", 0.8),
    ]
    with pytest.raises(SystemExit):
        run.parse_arguments(["--step", STEP, "--method", "lms-recording"])
