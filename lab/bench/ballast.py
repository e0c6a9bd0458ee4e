"""A limit that the device itself enforces: all memory beyond it is taken before the model is built.

A limit that only an allocator keeps says nothing of what the process takes past that allocator.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_UNIT = 2 * 2**20


def _runtime() -> Any:
    """The CUDA runtime that PyTorch has loaded, and whose current device PyTorch sets."""
    return ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")


class Ballast:
    """Holds device memory from its construction until `release()`; as a context manager, until the
    block ends. The device must be PyTorch's current one, with a context, and used by nobody else.

    `slack_bytes` is for what the limit is not about, such as the code of kernels and the driver's
    tables. From then on `limit_bytes + slack_bytes` of the device are free, or all that was free if
    that is less (`bytes` is 0 then). RuntimeError if the driver refuses.
    """

    def __init__(
        self,
        device: torch.device,
        limit_bytes: int,
        slack_bytes: int,
        runtime: Any = None,
    ) -> None:
        self.slack_bytes = slack_bytes
        self._device = device
        self._runtime = runtime or _runtime()
        self._address = ctypes.c_void_p()
        free, total = torch.cuda.mem_get_info(device)
        self.used_before = total - free
        self.used_peak = self.used_before
        self.bytes = max(0, free - limit_bytes - slack_bytes) // _UNIT * _UNIT
        if self.bytes == 0:
            return
        status = self._runtime.cudaMalloc(ctypes.byref(self._address), ctypes.c_size_t(self.bytes))
        if status != 0:
            size, self.bytes = self.bytes, 0
            self._runtime.cudaGetLastError()  # not to be found by others
            raise RuntimeError(f"no ballast of {size} bytes: CUDA error {status}")

    def sample(self) -> None:
        """Note what is in use on the device beyond the ballast: `used_peak` is the most so far."""
        free, total = torch.cuda.mem_get_info(self._device)
        self.used_peak = max(self.used_peak, total - free - self.bytes)

    def release(self) -> None:
        """Give the memory back. Idempotent."""
        if self.bytes:
            self._runtime.cudaFree(self._address)
            self.bytes = 0

    def fields(self) -> dict[str, int]:
        """What a record says of it. To be called before `release()`."""
        return {
            "ballast_bytes": self.bytes,
            "ballast_slack_bytes": self.slack_bytes,
            "device_used_before": self.used_before,
            "device_used_peak": self.used_peak,
        }

    def __enter__(self) -> Ballast:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
