"""What PyTorch's Python dispatcher remembers of kernels."""

from __future__ import annotations

import torch


def forget_resolved_kernels() -> None:
    """Lets the Python dispatcher (torch.compile's tracing) look up every kernel again.

    It remembers per operator at which key it found a kernel. Where LMS's wrapper came since, it
    would be passed by; where it went, PyTorch calls a kernel that is no longer there and crashes.
    To be called after each change of the wrappers, while no operator runs.
    """
    for op in list(torch._ops.get_cached_ops()):
        op._dispatch_cache.clear()
    torch._ops.reset_cached_ops()
