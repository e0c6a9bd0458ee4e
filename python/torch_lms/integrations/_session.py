"""LMS for the length of a training, and the scalars to log meanwhile: what all callbacks share."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch

import torch_lms

from .. import _learnt

_log = logging.getLogger("torch_lms")
_GIB = 2**30
PREDICTIONS = ("lms/predicted_ms", "lms/predicted_overhead")  # only once there is a plan


class Session:
    """``torch_lms.enable(**settings)`` from now on, until ``end()``.

    Where the device is managed already and no settings are given, nothing is changed, now or at the
    end. Where settings are given, those from before return at the end. Not thread-safe.

    >>> session = Session(limit="12GiB")
    >>> ...  # a number of training steps
    >>> wandb.log({"loss": loss} | session.scalars(step))
    >>> session.end()
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.running = False  # between begin and end
        self.begin()

    def begin(self) -> None:
        """Starts again after ``end()``; without effect if it has not ended."""
        if self.running:
            return
        self._device = torch_lms._resolve_name((), self._settings)
        self._before = torch_lms._current(self._device)
        if self._before is None or self._settings:
            torch_lms.enable(**self._settings)
        self.running = True
        self._plan = 0
        self._in_memory_ms = 0.0
        self.restart(0)

    def restart(self, step: int) -> None:
        """What ``scalars()`` tells next begins here, after ``step`` steps of training."""
        self._step = step
        self._since = time.perf_counter()
        self._last = torch_lms.memory_stats(self._device)

    def end(self) -> None:
        """The state from before. Where the tensors that are left do not fit the device without LMS,
        it stays on, and says so: nothing that has been trained is lost by it."""
        if not self.running:
            return
        self.running = False
        if not torch_lms.is_enabled(self._device):
            return
        try:
            if self._before is None:
                torch_lms.disable(self._device)
            elif self._settings:
                torch_lms._enable(self._before)
        except torch.OutOfMemoryError as error:
            _log.warning("LMS stays on: what is left of the training does not fit. %s", error)

    def scalars(self, step: int) -> dict[str, float]:
        """What has happened since the last call, as numbers to log; ``step``: how many steps of
        training there were until now. Empty if there were none since, or nothing is managed.

        ``lms/planned``: the share of steps under a plan. ``lms/step_ms``: how long one took, and,
        once there is a plan, ``lms/predicted_ms``: how long it should, and
        ``lms/predicted_overhead``: by which share that is longer than all in memory. A step of the
        plan is what repeats, which may be a part of a step of training. ``lms/out_gib``,
        ``lms/in_gib``, ``lms/recomputed_gib``: what left, came back and was computed again in a
        step. ``lms/peak_gib``: the most on the device since the training began, ``lms/below_gib``:
        what lies in the tier below now.
        """
        stats = torch_lms.memory_stats(self._device)
        steps = step - self._step
        if not stats or steps < 1:
            return {}
        seconds = time.perf_counter() - self._since
        last = self._last

        def grown(key: str) -> float:
            return max(0, stats[key] - last.get(key, 0)) / steps

        told = {
            "planned": min(1.0, grown("plan.steps")),
            "step_ms": 1e3 * seconds / steps,
            **self._predicted(stats, followed=grown("plan.steps") > 0),
            "out_gib": grown("bytes_out") / _GIB,
            "in_gib": grown("bytes_in") / _GIB,
            "recomputed_gib": grown("bytes_remade") / _GIB,
            "peak_gib": stats["device.bytes.peak"] / _GIB,
            "below_gib": (stats["host.bytes.current"] + stats["file.bytes.current"]) / _GIB,
        }
        self.restart(step)
        return {f"lms/{name}": float(value) for name, value in told.items()}

    def _predicted(self, stats: Mapping[str, int], followed: bool) -> dict[str, float]:
        plan = stats["plan.predicted_us"]
        if not followed or not plan:
            return {}
        if plan != self._plan:  # another plan: how long its step would take in memory
            learnt = _learnt.learnt_step(self._device)
            self._in_memory_ms = learnt.in_memory_ms if learnt is not None else 0.0
            self._plan = plan
        told = {"predicted_ms": plan / 1e3}
        if self._in_memory_ms > 0:
            told["predicted_overhead"] = plan / 1e3 / self._in_memory_ms - 1
        return told
