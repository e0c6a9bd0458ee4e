"""For the notebooks: a device of less memory than there is, where plain PyTorch runs out of it."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer would import it, at the cost of what there is


@contextlib.contextmanager
def smaller_device(size: int) -> Iterator[None]:
    """PyTorch gets `size` bytes: of the GPU or, without one, of RAM beside what is in use now."""
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties().total_memory
        torch.cuda.set_per_process_memory_fraction(size / whole)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            torch.cuda.empty_cache()
    else:
        torch.zeros(1 << 22).add_(1)  # starts PyTorch's threads, whose stacks count too
        status = Path("/proc/self/status").read_text()
        used = int(re.search(r"VmData:\s+(\d+) kB", status)[1]) << 10
        before, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + size, most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (before, most))
