"""What several tests of the benchmark harness share."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench import records  # noqa: E402
from bench.methods import Setting  # noqa: E402
from bench.steps import StepOptions  # noqa: E402

STEP = "resnet50_bf16_256x224"
CPU = torch.device("cpu")
GIB = 2**30


def setting(**changes) -> Setting:
    fields = {"step": STEP, "options": StepOptions(tiny=True), "device": CPU, "min_block": "4KiB"}
    return Setting(**(fields | {"limit_bytes": 2000} | changes))


def record(method: str, **fields) -> records.Record:
    return records.empty(STEP, method) | fields


FACTS = {"machine": {"gpu": None, "torch": "2"}, "options": {"tiny": True}}


def request(runs: list[dict], **changes) -> dict:
    fields = {
        "step": STEP,
        "options": {"tiny": True},
        "device": "cpu",
        "headroom": 1.0,
        "min_block": "4KiB",
        "plan_seconds": 0.5,
        "enable": {},
        "ballast_slack": None,
        "reference": None,
        "runs": runs,
    }
    return fields | changes


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
        self.on_trial_until = 0
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
            "bytes_remade": 500 * self.queries,
            "drops": 4 * self.queries,
            "remakes": 3 * self.queries,
            "device.bytes.peak": 1900,
            "device.reserved.peak": 1950,
            "plan.shapes": int(self.queries >= self.known_after),
            "plan.planned": self.planned,
            "plan.steps": self.followed,
            "plan.refined": int(self.followed > 0),
            "plan.on_trial": int(self.queries < self.on_trial_until),
            "plan.divergences": self.divergences,
            "plan.refused": 2 * self.queries,
            "plan.failed": self.queries,
            "plan.predicted_us": 12_500,
            "plan.peak": 1800,
            "plan.arena": 1890,
            "plan.arena_bound": 1850,
            "arena.misplaced": 7 * self.queries,
        }
