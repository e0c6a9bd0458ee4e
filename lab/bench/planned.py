"""A step under a limit, planned: waits until plans are followed, then times it."""

from __future__ import annotations

from types import ModuleType

from bench import memory
from bench.ballast import Ballast
from bench.records import Record
from bench.setting import Setting, engine_peaks, measured, traffic
from bench.steps import TrainStep
from bench.timing import Timed, no_garbage_collection, run_steps
from bench.weights import fingerprint

# Planned steps to wait for, timed ones, and when to wait no longer.
PLANNED_STEPS = 8
TIMED_STEPS = 6
MOST_STEPS = 40
MOST_SECONDS = 60.0


class NoPlan(RuntimeError):
    """No plan came, or none was followed."""

    def __init__(self, message: str, fields: Record) -> None:
        super().__init__(message)
        self.fields = fields


class _Watch:
    """To be called after each step: counts those carried out under a plan from end to end."""

    def __init__(self, lms: ModuleType, ballast: Ballast | None) -> None:
        self._lms, self._ballast = lms, ballast
        self.stats: Record = dict(lms.memory_stats())
        self.planned_steps = 0

    def __call__(self) -> None:
        before, self.stats = self.stats, dict(self._lms.memory_stats())
        followed = self.stats["plan.steps"] > before["plan.steps"]
        if followed and self.stats["plan.divergences"] == before["plan.divergences"]:
            self.planned_steps += 1
        if self._ballast is not None:
            self._ballast.sample()


def _until_planned(lms: ModuleType, setting: Setting, step: TrainStep) -> Timed:
    """Steps until some were carried out under a plan that was made with the times of planned steps,
    and it is known which plan stays; of a loop whose steps differ, its warm-up."""
    loop = step.loop
    wanted = setting.warmup or (loop.warmup if loop else PLANNED_STEPS)
    with no_garbage_collection():  # between steps it would be host time of these, to the planner
        return _warm_up(lms, setting, step, wanted)


def _warm_up(lms: ModuleType, setting: Setting, step: TrainStep, wanted: int) -> Timed:
    loop = step.loop
    warm, watch, first_plan = Timed(), _Watch(lms, setting.ballast), 0
    while True:
        warm.extend(run_steps(step, 1, setting.device, watch))
        stats = watch.stats
        if stats["plan.refined"] == 0:
            first_plan = watch.planned_steps
        enough = (len(warm.ms) if loop else watch.planned_steps - first_plan) >= wanted
        late = len(warm.ms) >= MOST_STEPS or sum(warm.ms) > MOST_SECONDS * 1e3
        if enough and (loop or late or not stats["plan.on_trial"]):
            return warm
        if not loop and late:
            raise NoPlan(
                f"{watch.planned_steps} steps out of {len(warm.ms)} ({sum(warm.ms) / 1e3:.0f} s) "
                f"were carried out under a plan, not {wanted}: {stats['plan.shapes']} kinds of "
                f"step known, {stats['plan.planned']} planned, {stats['plan.divergences']} times "
                "another step than planned",
                {
                    "planned": stats["plan.planned"] > 0,
                    "warmup_ms": warm.ms,
                    "losses": warm.losses,
                    "stats": stats,
                },
            )
        if stats["plan.shapes"] > 0:
            lms.wait_for_plan(str(setting.device))


def _promised(stats: Record) -> Record:
    """What the plan last followed has promised; nulls if there is none."""
    if not stats["plan.planned"]:
        return {}
    return {
        "predicted_ms": stats["plan.predicted_us"] / 1e3,
        "plan_peak": stats["plan.peak"],
        "plan_arena": stats["plan.arena"],
        "plan_arena_bound": stats["plan.arena_bound"],
    }


def measure(lms: ModuleType, setting: Setting, step: TrainStep) -> Record:
    """What a record says of `step`, LMS being on. An error after the timed steps has them in its
    attribute `fields`."""
    device = setting.device
    try:
        warm = _until_planned(lms, setting, step)
        reserved = memory.read_peaks(device)["reserved_peak"]
        lms.reset_peak_memory_stats(str(device))
        memory.reset_peaks(device)
        count = setting.steps or (step.loop.steps if step.loop else TIMED_STEPS)
        watch = _Watch(lms, setting.ballast)
        before = watch.stats
        timed = run_steps(step, count, device, watch)
        stats = watch.stats
    finally:
        # Also of a step that failed: what was learnt may tell why.
        if setting.trace is not None:
            setting.trace.parent.mkdir(parents=True, exist_ok=True)
            try:
                lms.save_trace(str(setting.trace), str(device))
            except RuntimeError as error:
                print(f"no trace: {error}", flush=True)

    def grown(key: str) -> int:
        return stats.get(key, 0) - before.get(key, 0)

    fields = (
        measured(step, timed, warm)
        | traffic(before, stats, len(timed.ms))
        | engine_peaks(stats, memory.read_peaks(device))
        | _promised(stats)
        | {
            "warmup_ms": warm.ms,
            "planned": stats["plan.planned"] > 0,
            "plan_steps": watch.planned_steps,
            "divergences": grown("plan.divergences"),
            "refused": grown("plan.refused"),
            "failed": grown("plan.failed"),
            "misplaced": grown("arena.misplaced"),
            "reserved_peak_warmup": reserved,
            "stats": stats,
        }
    )
    try:
        # Operators that no plan knows: they come when everything else is known.
        fields["weights"] = {len(fields["losses"]): fingerprint(step.model)}
    except Exception as error:
        error.fields = fields
        raise
    return fields
