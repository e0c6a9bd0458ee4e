"""Lists of runs that belong together, split into processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Run:
    """One method at one limit."""

    method: str
    limit_bytes: int | None = None
    ratio: float | None = None

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
            return Run(run.method, ratio=self.tiny_ratios[run.limit_bytes])

        jobs = (Job(j.step, tuple(shrink(r) for r in j.runs), j.seconds) for j in self.jobs)
        return Suite(tuple(jobs))


_TODAY = (Run("plain"), Run("checkpoint"), Run("save_on_cpu"), Run("lms-fits"))
_RESNET, _LLAMA = "resnet50_bf16_256x224", "llama1b_adamw_bf16_4x2048"


def _limited(step: str, seconds: float, **run: Any) -> Job:
    return Job(step, (Run("lms-reactive", **run),), seconds)


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
                ("deeplabv3_r101_bf16_16x513", 50.0),
                ("googlenet_bf16_15x1120", 40.0),
                ("unet3d_bf16_192", 50.0),
            )
            for job in (
                Job(step, (Run("plain"),), 25.0),
                _limited(step, seconds, ratio=2.0),
            )
        )
    ),
}
