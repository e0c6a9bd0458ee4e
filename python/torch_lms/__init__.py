"""Large Model Support: train past the memory of the device, on stock PyTorch, with one line.

>>> import torch_lms
>>> torch_lms.enable(limit="12GiB")  # nothing else changes in the training script
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from . import (
    _access,
    _dispatch,
    _explain,
    _learnt,
    _library,
    _monitor,
    _settings,
    _statistics,
)
from ._bench import bench
from ._optimizer import step_in_backward
from ._settings import Settings
from ._summary import format_summary
from ._version import __version__

__all__ = [
    "__version__",
    "bench",
    "devices",
    "disable",
    "enable",
    "explain",
    "get_host_limit",
    "get_limit",
    "get_min_block",
    "is_enabled",
    "managed",
    "memory_stats",
    "memory_summary",
    "reclaim_inactive",
    "reset_peak_memory_stats",
    "save_timeline",
    "save_trace",
    "step",
    "step_in_backward",
    "wait_for_plan",
]

Device = torch.device | str | int | None

_log = logging.getLogger("torch_lms")
_lock = threading.RLock()
_in_force: dict[str, Settings] = {}


def enable(
    limit: int | str | None = None,
    host_limit: int | str | None = None,
    min_block: int | str | None = None,
    device: Device = None,
    *,
    directory: str | None = None,
    stress: bool | str | None = None,
    verify: bool | None = None,
    plan: str | bool | None = None,
    plan_seconds: float | None = None,
    recompute: bool | str | None = None,
    plan_cache: str | bool | None = None,
    deferred_updates: bool | str | None = None,
    other_algorithms: bool | None = None,
    slices: str | bool | None = None,
    log: str | None = None,
    monitor: bool | None = None,
    **unknown: Any,
) -> None:
    """Starts managing a device's memory; if it is managed already, changes the settings that are
    given, and leaves the others as they are.

    Each setting can also come from a variable (``LMS_LIMIT``, ``LMS_HOST_LIMIT``,
    ``LMS_MIN_BLOCK``, ``LMS_DEVICE``, ``LMS_DIR``, ``LMS_STRESS``, ``LMS_VERIFY``, ``LMS_PLAN``,
    ``LMS_PLAN_SECONDS``, ``LMS_RECOMPUTE``, ``LMS_PLAN_CACHE``, ``LMS_DEFERRED_UPDATES``,
    ``LMS_OTHER_ALGORITHMS``, ``LMS_SLICES``, ``LMS_LOG``, ``LMS_MONITOR``).
    An argument beats what is in force, which beats its variable, which beats the default.

    Args:
        limit: memory to stay below on the device: bytes, or a string such as ``"12GiB"`` or
            ``"50%"`` (of the device's memory). By default what the device has free, less a margin.
        host_limit: the same for the tier below: main memory below a GPU, a file below the CPU.
        min_block: smaller tensors stay where they are. By default ``"1MiB"``. On a device that is
            managed already it can only become smaller: blocks that are out must still be found.
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``, a ``torch.device`` or a CUDA device's number.
            By default CUDA's current device, or the CPU where there is none.
        directory: where the file tier lives.
        stress: evict everything after every operator; ``"drop"``: and drop what can be computed
            again, instead. For tests: slow.
        verify: compare every clean eviction with its copy. For tests: slow.
        plan: ``"on"`` learns the steps of the training loop and plans their copies ahead;
            ``"off"`` moves blocks only when an operator needs the room, or the block; ``"now"``
            plans while the step waits, not beside it, to test.
        plan_seconds: most time to search for a better plan, once for each kind of step.
        recompute: plans may let go of what is cheaper to compute again than to copy. By default
            (``"auto"``) on GPUs: on the CPU, code that PyTorch does not see may read tensors
            where they lie, and what has been dropped cannot be read.
        plan_cache: folder in which plans are kept, so that the same training begins planned when it
            is started again. By default (``"auto"``) ``lms/plans`` in the user's folder of caches;
            ``"off"``: they are forgotten.
        deferred_updates: an optimizer's updates may run later than they are called: before anybody
            looks at what they write, or changes what they read. Large operators over lists wait
            for those that follow them, and run weight by weight, so that an optimizer goes once
            through weights and state; some that a plan chooses wait until the next forward pass
            uses the weight. Results are the same. By default (``"auto"``) on GPUs: on the CPU, code
            that PyTorch does not see may read weights where they lie. ``"chosen"``: no others than
            those that a plan chooses wait. ``"updates"``, ``"all"`` and ``"random"`` are for tests:
            without a plan, all that can wait does.
        other_algorithms: where the algorithm that cuDNN chooses for a convolution finds no room for
            what it needs of its own, on the device or, where it may lie there, in host memory, let
            the next one that PyTorch knows take its place, as in PyTorch without LMS. Results then
            have other bits than on a larger device. By default there is an error instead.
        slices: operators whose parts are independent (softmax, pooling, everything that goes
            element by element) run part by part, with the same bits, where they do not fit as a
            whole; what cannot be cut (convolutions, matrix products) works, as the last resort,
            on tensors where they lie in host memory, which is slow; and what lies between a
            language model's logits and their gradient (casts, log_softmax, the loss) is never there
            as a whole, but made row by row where it is used (``"auto"`` and ``"all"``; the last
            not with ``deferred_updates=False``).
            ``"parts"``: the first alone; ``"off"``: none; ``"always"``, ``"in_place"``,
            ``"chains"``: the first, second or third wherever it can be, to test.
        log: what to say on standard error: ``"off"``, ``"info"`` or ``"debug"``.
        monitor: write once a second what LMS does to a small file, for the program ``lms top``.

    Raises:
        TypeError: an unknown setting.
        ValueError: a bad value, or an unknown ``LMS_*`` variable.
        RuntimeError: the library cannot be used here (see the message), or refuses.
    """
    given = {name: value for name, value in locals().items() if name != "unknown"}
    _settings.check_names(unknown)
    with _lock:
        _enable(_settings.resolve(given, in_force=_kept))


def _enable(settings: Settings) -> None:
    ops = _library.ops()
    with _lock:
        fresh = not _access.is_installed()
        _access.install()  # before any block can be out
        try:
            ops.enable(_settings.as_options(settings))
        except BaseException:
            if fresh and not ops.devices():
                _access.remove()
            raise
        _dispatch.forget_resolved_kernels()
        _in_force[settings.device] = settings
        _start_log(settings.log)
        _monitor.run(_monitored(), _sample)
        _log.info(
            "managing %s: limit %d bytes, blocks of at least %d bytes",
            settings.device,
            ops.limit(settings.device),
            settings.min_block,
        )


def _start_log(level: str) -> None:
    _library.ops().speak(level != "off")
    if level == "off":
        _log.setLevel(logging.NOTSET)
        return
    _log.setLevel(level.upper())
    if not _log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        _log.addHandler(handler)


def disable(device: Device = None) -> None:
    """Stops managing ``device``, by default every device. Idempotent.

    All bytes return to the device (for CPU tensors: to plain memory). If they do not fit, the error
    says so and managing goes on.
    """
    if not _library.is_loaded():
        return
    ops = _library.ops()
    with _lock:
        names = list(ops.devices()) if device is None else [_settings.parse_device(device)]
        try:
            for name in names:
                if name in ops.devices():  # by inheritance too, in a forked child
                    ops.disable(name)
                    _log.info("no longer managing %s", name)
        finally:
            left = set(ops.devices())
            for name in set(_in_force) - left:
                del _in_force[name]
            _monitor.run(_monitored(), _sample)
            _dispatch.forget_resolved_kernels()
            if not left:
                _access.remove()


@contextlib.contextmanager
def managed(*args: Any, **kwargs: Any) -> Iterator[None]:
    """``enable(...)`` for the length of a ``with`` block; then the state from before returns.

    One thing does not, if the device was managed before: a ``min_block`` that the block lowered.
    """
    name = _resolve_name(args, kwargs)
    with _lock:
        before = _current(name)
    enable(*args, **kwargs)
    try:
        yield
    finally:
        if before is None:
            disable(name)
        else:
            _enable(before)


def _resolve_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The device that ``enable(*args, **kwargs)`` would manage."""
    given = args[3] if len(args) > 3 else kwargs.get("device")
    return _settings.resolve({"device": given}).device


def _kept(name: str) -> Settings | None:
    """The settings in force on a device as they were given, or None."""
    return _in_force.get(name) if is_enabled(name) else None


def _current(name: str) -> Settings | None:
    """The settings in force on a device, with the limit that was found, or None."""
    if not is_enabled(name):
        return None
    ops = _library.ops()
    known = _in_force.get(name) or _settings.resolve({"device": name})
    return dataclasses.replace(
        known,
        limit=ops.limit(name),
        host_limit=ops.host_limit(name),
        min_block=ops.min_block(name),
    )


def devices() -> list[str]:
    """The devices that are managed now: in a forked child none before ``enable()``."""
    if not _library.is_loaded():
        return []
    ops = _library.ops()
    return [name for name in ops.devices() if ops.is_enabled(name)]


def is_enabled(device: Device = None) -> bool:
    """Whether ``device`` is managed; without an argument, whether any is."""
    if not _library.is_loaded():
        return False
    if device is None:
        return bool(devices())
    return bool(_library.ops().is_enabled(_settings.parse_device(device)))


def _managed_device(device: Device) -> str | None:
    """The managed device that is meant: the one named; else the default one, or the only one."""
    enabled = devices()
    if device is not None:
        name = _settings.parse_device(device)
        return name if name in enabled else None
    if len(enabled) == 1:
        return enabled[0]
    name = _settings.resolve({}).device if enabled else ""
    return name if name in enabled else None


def _require(device: Device) -> str:
    name = _managed_device(device)
    if name is None:
        what = "no device" if device is None else f"device {str(device)!r}"
        raise RuntimeError(
            f"torch_lms: {what} is managed (managed now: {', '.join(devices()) or 'none'}); "
            "call torch_lms.enable() first"
            if device is not None or not devices()
            else f"torch_lms: several devices are managed ({', '.join(devices())}): name one"
        )
    return name


def get_limit(device: Device = None) -> int:
    """The limit in force on a managed device, in bytes. RuntimeError if it is not managed."""
    return int(_library.ops().limit(_require(device)))


def get_host_limit(device: Device = None) -> int:
    """The limit in force on the tier below a managed device, in bytes."""
    return int(_library.ops().host_limit(_require(device)))


def get_min_block(device: Device = None) -> int:
    """The size in bytes below which tensors are not managed."""
    return int(_library.ops().min_block(_require(device)))


def memory_stats(device: Device = None) -> OrderedDict[str, int]:
    """Statistics of a managed device: flat dotted keys in order, in the shape of
    ``torch.cuda.memory_stats()``. Bytes and counts are ints. A tier that the device does not have
    holds 0 bytes. Empty if the device is not managed."""
    name = _managed_device(device)
    if name is None:
        return OrderedDict()
    stats = dict(_library.ops().stats(name))
    for tier in ("host", "file"):
        if f"{tier}.bytes.current" not in stats:
            stats.update({f"{tier}.bytes.{column}": 0 for column in _statistics.ALL})
    return OrderedDict(sorted(stats.items()))


def memory_summary(device: Device = None) -> str:
    """The statistics of a managed device as a table to read."""
    name = _managed_device(device)
    if name is None:
        return format_summary(None, {})
    return format_summary(name, memory_stats(name), _library.ops().plan_state(name))


def explain(device: Device = None) -> str:
    """In plain words: whether steps are planned, what lies on the device and what stays there, what
    moved, between which limits the step that is known can run, and what would be faster. Without
    ``device`` of every device that is managed. For people: the wording may change."""
    names = devices() if device is None else [_require(device)]
    if not names:
        return "LMS manages nothing: call torch_lms.enable() before the model is made."
    return "\n\n".join(_explain.explain(_situation(name)) for name in names)


def _situation(name: str) -> _explain.Situation:
    settings = _in_force.get(name)
    return _explain.Situation(
        device=name,
        stats=memory_stats(name),
        planning=settings is None or settings.plan != "off",
        learnt=_learnt.learnt_step(name),
        state=_library.ops().plan_state(name),
        detour=_library.ops().plan_detour(name),
    )


def _monitored() -> bool:
    return any(name in _in_force and _in_force[name].monitor for name in devices())


def _sample() -> list[dict[str, Any]]:
    """What the monitor writes of each device."""
    found = []
    for name in devices():
        stats, settings = memory_stats(name), _in_force.get(name)
        if stats and settings is not None:  # else it is being disabled
            state = _library.ops().plan_state(name)
            found.append({"device": name, "settings": dataclasses.asdict(settings),
                          "state": state, "stats": stats})  # fmt: skip
    return found


def reset_peak_memory_stats(device: Device = None) -> None:
    """Starts every ``peak`` anew from its current value. Without effect if nothing is managed."""
    name = _managed_device(device)
    if name is not None:
        _library.ops().reset_peak(name)


def step(device: Device = None) -> None:
    """Says that a training step ends here. Never needed: steps are found from the stream of
    operators. It helps where a loop repeats something within its step."""
    name = _managed_device(device)
    if name is not None:
        _library.ops().step(name)


def wait_for_plan(device: Device = None) -> None:
    """Waits until no plan is being made; it is followed from the next step on."""
    name = _managed_device(device)
    if name is not None:
        _library.ops().wait_for_plan(name)


def save_trace(path: str, device: Device = None) -> None:
    """Writes the step that was learnt to a file (JSON; gzip if the name ends in ``.gz``), for
    ``lms plan`` and for reports. RuntimeError if no step is known yet."""
    _library.ops().save_trace(str(path), _require(device))


def save_timeline(path: str, device: Device = None) -> None:
    """Draws the planned step to a file: a still picture if the name ends in ``.svg``, else a Chrome
    trace for Perfetto (gzip if it ends in ``.gz``). It shows what was predicted and, once a step
    has been timed under a plan (a few steps after it was made), beside it what was measured.
    RuntimeError if no step has been planned yet."""
    _library.ops().save_timeline(str(path), _require(device))


def reclaim_inactive(device: Device = None) -> int:
    """Evicts everything that is not in use; returns the bytes that left the device."""
    name = _managed_device(device)
    return 0 if name is None else int(_library.ops().reclaim_inactive(name))
