"""What a run holds in memory: from the caching allocator of a GPU, else by counting tensors."""

from __future__ import annotations

import gc
import resource
import weakref
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operators touch while the mode is on.

    For devices whose allocator keeps no statistics. Scratch memory inside kernels is not seen, so
    `peak` is a little low; operators run by other threads are not seen either (backward passes of
    CPU tensors run on the calling thread, and are).
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def _forget(self, key: int) -> None:
        self.current -= self._sizes.pop(key, 0)

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.current += storage.nbytes()
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._forget, key)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves((args, kwargs, out)):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return out


def release(device: torch.device) -> None:
    """Give back all memory that nobody uses: garbage, and what PyTorch's allocators cache."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()


def reset_peaks(device: torch.device) -> None:
    """Start a new measurement of the peaks that `read_peaks` returns."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.reset_peak_host_memory_stats()


def read_peaks(device: torch.device) -> dict[str, int | None]:
    """Peaks in bytes since `reset_peaks`: allocated and reserved on the device, pinned in PyTorch's
    host allocator (null where the device keeps no such statistics); and of the process, ever, its
    resident memory."""
    peaks: dict[str, int | None] = {
        "allocated_peak": None,
        "reserved_peak": None,
        "host_peak": None,
        "process_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if device.type == "cuda":
        peaks["allocated_peak"] = torch.cuda.max_memory_allocated(device)
        peaks["reserved_peak"] = torch.cuda.max_memory_reserved(device)
        peaks["host_peak"] = torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)
    return peaks
