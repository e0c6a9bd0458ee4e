"""Lists of runs that belong together, split into processes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Run:
    """One method at one limit."""

    method: str
    limit_bytes: int | None = None
    ratio: float | None = None
    # Instead of the method's own numbers of steps.
    warmup: int | None = None
    steps: int | None = None
    # Of a plain run: steps that others are to be compared with, if more than it has.
    compared: int | None = None

    def label(self) -> str:
        """Names the run's file, after the step's name."""
        if self.limit_bytes is not None:
            return f"{self.method}.{self.limit_bytes / GIB:.4g}GiB"
        return self.method if self.ratio is None else f"{self.method}.{self.ratio:.4g}x"


@dataclass(frozen=True)
class Job:
    """Runs of one step that share a process, and a guess of their seconds on an H200."""

    step: str
    runs: tuple[Run, ...]
    seconds: float

    def skipped(self) -> str:
        """How a note calls it."""
        return f"{self.step}: {', '.join(run.label() for run in self.runs)}"


@dataclass(frozen=True)
class Suite:
    """Jobs in order. A plain run comes before those that are compared with it."""

    jobs: tuple[Job, ...]
    # For the tiny variants, whose peaks the limits in bytes would not fit: ratios instead.
    tiny_ratios: dict[int, float] = field(default_factory=dict)

    def shrunk(self) -> Suite:
        """The suite for tiny steps."""

        def shrink(run: Run) -> Run:
            if run.limit_bytes is None:
                return run
            return replace(run, limit_bytes=None, ratio=self.tiny_ratios[run.limit_bytes])

        jobs = (Job(j.step, tuple(shrink(r) for r in j.runs), j.seconds) for j in self.jobs)
        return Suite(tuple(jobs))

    def only(
        self,
        steps: Collection[str] = (),
        methods: Collection[str] = (),
        ratios: Collection[float] = (),
    ) -> Suite:
        """The runs that are of these steps, methods and ratios (runs without a ratio are of every
        one); what is empty does not choose."""

        def chosen(run: Run) -> bool:
            of_method = not methods or run.method in methods
            return of_method and (not ratios or run.ratio is None or run.ratio in ratios)

        jobs = []
        for job in self.jobs:
            runs = tuple(run for run in job.runs if chosen(run))
            if runs and (not steps or job.step in steps):
                jobs.append(Job(job.step, runs, job.seconds * len(runs) / len(job.runs)))
        return Suite(tuple(jobs), self.tiny_ratios)


_TODAY = (Run("plain"), Run("checkpoint"), Run("save_on_cpu"), Run("lms-fits"))
_RESNET, _LLAMA = "resnet50_bf16_256x224", "llama1b_adamw_bf16_4x2048"
_UNET, _DEEPLAB = "unet3d_bf16_192", "deeplabv3_r101_bf16_16x513"


# The same steps from operators that repeat bit by bit, where those of the step do not.
DETERMINISTIC = {_DEEPLAB: f"{_DEEPLAB}_deterministic"}

# Overheads that recomputation is to keep below, by ratio; None: to be stated.
WANTED: dict[str, dict[float, float | None]] = {
    _RESNET: {1.5: 0.04, 2.0: 0.07, 3.0: 0.13, 4.0: 0.18},
    "resnet50_tf32_4x2000": {1.5: 0.04, 2.0: 0.08, 3.0: 0.15, 4.0: 0.20, 8.0: None},
    _DEEPLAB: {1.5: 0.04, 2.0: 0.07, 3.0: 0.12, 4.0: 0.16},
    "googlenet_bf16_15x1120": {1.5: 0.08, 2.0: 0.14, 3.0: 0.22, 4.0: None},
    _UNET: {1.5: 0.01, 2.0: 0.02, 3.0: 0.05},
    _LLAMA: {1.5: 0.06, 2.0: 0.10, 3.0: 0.65, 4.0: None},
    f"{_LLAMA}_in_backward": {1.5: 0.05, 2.0: 0.08, 3.0: 0.14, 4.0: 0.25},
}


def _limited(step: str, seconds: float, **run: Any) -> Job:
    return Job(step, (Run("lms-reactive", **run),), seconds)


def _planned() -> Suite:
    """Steps planned at two limits each, then the same limits without plans. The plain runs are as
    long as those compared with them."""
    base = (Run("plain", warmup=4, steps=16), Run("save_on_cpu", warmup=2, steps=2))
    # Seconds: of the first two; of the planned run, and of the reactive one.
    rows = (
        (_UNET, (2.0, 3.0), 35, 26, 22),
        (_RESNET, (1.25, 2.0), 28, 22, 16),
        (_LLAMA, (1.25, 1.5), 40, 32, 26),
        (_DEEPLAB, (1.25, 2.0), 38, 26, 20),
    )
    jobs = []
    for step, ratios, today, planned, _ in rows:
        jobs.append(Job(step, base, today))
        jobs += [Job(step, (Run("lms-swap", ratio=ratio),), planned) for ratio in ratios]
    for step, ratios, _, _, reactive in rows:
        jobs += [_limited(step, reactive, ratio=ratio, warmup=2, steps=3) for ratio in ratios]
    return Suite(tuple(jobs))


def _recompute() -> Suite:
    """Every step at every limit with copies and recomputation planned; bits, where the step needs
    another variant for that; what users do today; and copies alone."""
    # Planned runs take about two dozen steps until their last timed one; up to 52 where two plans
    # of the step are compared.
    plain = (Run("plain", warmup=4, steps=16, compared=56),)
    today = (Run("checkpoint", warmup=3, steps=8), Run("save_on_cpu", warmup=2, steps=2))
    # Seconds of the plain run, of a planned one, and of the two of today.
    seconds = {
        _RESNET: (18, 22, 26),
        "resnet50_tf32_4x2000": (25, 30, 40),
        _DEEPLAB: (25, 26, 32),
        "googlenet_bf16_15x1120": (20, 24, 30),
        _UNET: (30, 28, 28),
        _LLAMA: (30, 32, 40),
        f"{_LLAMA}_in_backward": (30, 32, 40),
    }
    jobs = []
    for step, ratios in WANTED.items():
        first, planned, _ = seconds[step]
        jobs.append(Job(step, plain, first))
        jobs += [Job(step, (Run("lms", ratio=ratio),), planned) for ratio in ratios]
    for step, variant in DETERMINISTIC.items():
        first, planned, _ = seconds[step]
        jobs.append(Job(variant, plain, first))
        jobs.append(Job(variant, (Run("lms", ratio=2.0),), planned))
    jobs += [Job(step, today, seconds[step][2]) for step in WANTED]
    jobs += [Job(step, (Run("lms-swap", ratio=2.0),), seconds[step][1]) for step in WANTED]
    return Suite(tuple(jobs))


def _loops() -> Suite:
    """Loops whose steps differ, at half of what they need, with plans and without."""
    jobs = []
    for step in ("loop_shapes", "loop_branch"):
        jobs.append(Job(step, (Run("plain"),), 15))
        jobs.append(_limited(step, 22, ratio=2.0))
        jobs.append(Job(step, (Run("lms-swap", ratio=2.0),), 30))
    return Suite(tuple(jobs))


def _recording() -> Suite:
    """What recording costs, where nothing has to move: the limit is a quarter above the peak."""
    jobs = []
    for step, plain, seconds in ((_RESNET, 15, 25), (_LLAMA, 22, 30)):
        jobs.append(Job(step, (Run("plain"),), plain))
        jobs.append(Job(step, (Run("lms-recording", ratio=0.8),), seconds))
    return Suite(tuple(jobs))


def _host() -> Suite:
    """Steps of many small operators, of packages that users take their models from; then our own.
    All of a step's runs share a process."""
    seconds = {
        "efficientnetv2_m_64x288": 60,
        "swin_base_96x224": 55,
        "bert_large_24x512": 50,
        "gpt2_medium_8x1024": 55,
        "densenet201_128x224": 50,
        "convnext_base_96x224": 45,
        "vit_large_64x224": 45,
        _RESNET: 35,
        _LLAMA: 45,
        _UNET: 45,
        _DEEPLAB: 40,
        "googlenet_bf16_15x1120": 40,
    }
    run = Run("host", ratio=2.0)
    return Suite(tuple(Job(step, (run,), guess) for step, guess in seconds.items()))


SUITES: dict[str, Suite] = {
    "reactive": Suite(
        (
            Job(_RESNET, _TODAY, 50),
            _limited(_RESNET, 30, limit_bytes=int(5.5 * GIB)),
            _limited(_RESNET, 35, limit_bytes=3 * GIB),
            Job(_LLAMA, _TODAY, 90),
            _limited(_LLAMA, 60, limit_bytes=18 * GIB),
            _limited(_LLAMA, 75, limit_bytes=10 * GIB),
        ),
        tiny_ratios={int(5.5 * GIB): 1.5, 3 * GIB: 2.0, 18 * GIB: 1.5, 10 * GIB: 2.0},
    ),
    "convnets": Suite(
        tuple(
            job
            for step, seconds in (
                ("resnet50_tf32_4x2000", 60.0),
                (_DEEPLAB, 50.0),
                ("googlenet_bf16_15x1120", 40.0),
                (_UNET, 50.0),
            )
            for job in (
                Job(step, (Run("plain"),), 25.0),
                _limited(step, seconds, ratio=2.0),
            )
        )
    ),
    "planned": _planned(),
    "recompute": _recompute(),
    "loops": _loops(),
    "recording": _recording(),
    "host": _host(),
}
