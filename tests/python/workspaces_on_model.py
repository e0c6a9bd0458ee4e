"""What a run before LMS has left in PyTorch's allocator, on the model of CUDA (costless).

cuBLAS's workspaces lie where there was room at the time: in a segment of a tensor that is gone.
"""

from __future__ import annotations

import sys

import torch

import torch_lms

MIB = 1 << 20


def reserved() -> int:
    return torch.cuda.memory_reserved() // MIB


def main(graph: bool) -> None:
    large = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    del large
    a = torch.zeros(64, 64, device="cuda")
    a @ a
    torch.cuda.empty_cache()
    assert reserved() >= 256, "the workspace lies in the segment of what was large"
    if graph:
        torch.cuda.graph_pool_handle()  # as whoever captures graphs takes one
    for _ in range(2):
        torch_lms.enable(device="cuda", limit="320MiB", plan="off")
        if graph:
            assert reserved() >= 256, "a graph may use it"
        else:
            assert reserved() < 64
            whole = torch.empty(280 * MIB, dtype=torch.uint8, device="cuda")
            del whole
        a @ a
        torch_lms.disable()


if __name__ == "__main__":
    main(sys.argv[1:] == ["graph"])
