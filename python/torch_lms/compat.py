"""The calls of the earlier PyTorch LMS, on ``torch.cuda``: scripts of that time run unchanged.

>>> import torch_lms.compat
>>> torch.cuda.set_limit_lms(12 << 30)
>>> torch.cuda.set_enabled_lms(True)

They work in any order and drive CUDA's current device; where there is no CUDA, the CPU. What is set
here is an argument in the sense of ``torch_lms.enable``: it beats the ``LMS_*`` variables.
"""

from __future__ import annotations

import threading

import torch

import torch_lms

__all__ = [
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "max_memory_active",
    "memory_active",
    "memory_reclaimed",
    "reclaim_inactive",
    "reset_max_memory_active",
    "reset_memory_reclaimed",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
]

_DEFAULT_SIZE = 1 << 20

_lock = threading.RLock()
_limit: int = 0
_size: int | None = None
_reclaimed_before: dict[str, int] = {}


def _apply() -> None:
    torch_lms.enable(limit=_limit or None, min_block=_size)


def set_enabled_lms(enable: bool) -> None:
    """Switches large model support on or off."""
    with _lock:
        if enable:
            _apply()
        else:
            torch_lms.disable()
            _reclaimed_before.clear()


def get_enabled_lms() -> bool:
    """Whether large model support is on."""
    return torch_lms.is_enabled()


def set_limit_lms(limit: int) -> None:
    """Sets the device memory to stay below, in bytes; 0 is automatic. Before or after enabling."""
    global _limit
    limit = torch_lms._settings.parse_bytes(limit, least=0)
    with _lock:
        before, _limit = _limit, limit
        try:
            if torch_lms.is_enabled():
                _apply()
        except BaseException:
            _limit = before
            raise


def get_limit_lms() -> int:
    """The limit that was set, in bytes; 0 is automatic."""
    return _limit


def set_size_lms(size: int) -> None:
    """Sets the size in bytes below which tensors are left alone. Before or after enabling; while
    enabled, a larger size than before takes effect the next time."""
    global _size
    size = torch_lms._settings.parse_bytes(size, least=0)
    with _lock:
        before, _size = _size, size
        try:
            if torch_lms.is_enabled():
                _apply()
        except BaseException:
            _size = before
            raise


def get_size_lms() -> int:
    """The size in bytes below which tensors are left alone."""
    return _DEFAULT_SIZE if _size is None else _size


def reclaim_inactive() -> None:
    """Evicts everything that is not in use."""
    torch_lms.reclaim_inactive()


def _device_name(device: torch_lms.Device) -> str:
    return torch_lms._managed_device(device) or ""


def memory_active(device: torch_lms.Device = None) -> int:
    """Bytes that operators are using now."""
    return torch_lms.memory_stats(device).get("pinned.bytes.current", 0)


def max_memory_active(device: torch_lms.Device = None) -> int:
    """The most bytes that operators have used at once."""
    return torch_lms.memory_stats(device).get("pinned.bytes.peak", 0)


def reset_max_memory_active(device: torch_lms.Device = None) -> None:
    """Starts the peaks anew (every peak of the device, not this one alone)."""
    torch_lms.reset_peak_memory_stats(device)


def memory_reclaimed(device: torch_lms.Device = None) -> int:
    """Bytes that were copied off the device since the start, or since the last reset."""
    moved = torch_lms.memory_stats(device).get("bytes_out", 0)
    return moved - _reclaimed_before.get(_device_name(device), 0)


def reset_memory_reclaimed(device: torch_lms.Device = None) -> None:
    """Counts ``memory_reclaimed`` from here."""
    _reclaimed_before[_device_name(device)] = torch_lms.memory_stats(device).get("bytes_out", 0)


for _name in __all__:
    setattr(torch.cuda, _name, globals()[_name])
