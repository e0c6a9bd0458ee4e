"""The peak memory of this process, measured the same way whether LMS is there or not."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
# Memory that only swapping could take from the process. Pages of mapped files (RssFile) are left
# out: the kernel drops those whenever it wants.
_FIELDS = ("RssAnon:", "RssShmem:")
_SECONDS = 0.003


def resident_bytes() -> int:
    """Anonymous and shared memory of this process that is in RAM now (Linux)."""
    lines = _STATUS.read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_FIELDS))


class PeakMeter:
    """Measures from construction to `stop()`.

    CPU: a thread samples the kernel's figure for this process every few milliseconds; the result is
    the growth since construction. GPU: what PyTorch's allocator had reserved at most. For one
    thread: the one that trains.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stop = threading.Event()
        self._base = self._peak = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        self._base = self._peak = resident_bytes()
        self._thread = threading.Thread(target=self._sample, name="peak-meter", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._peak = max(self._peak, resident_bytes())

    def stop(self) -> int:
        """End the measurement: the peak in bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved(self._device)
        self._stop.set()
        self._thread.join()
        return max(self._peak, resident_bytes()) - self._base
