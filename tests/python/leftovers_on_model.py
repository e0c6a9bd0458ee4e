"""What lies below the arena's window and dies while LMS is off, or on (model of CUDA, costless)."""

from __future__ import annotations

import sys

import torch

import torch_lms

MIB = 1 << 20


def taken(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def in_the_arena() -> int:
    return torch_lms.memory_stats("cuda")["arena.reserved.current"] // MIB


def main(off: bool) -> None:
    torch_lms.enable(device="cuda", limit="512MiB", min_block="1MiB", plan="off")
    below = taken(380)
    squatter = taken(64)
    squatter.data_ptr()  # it stays where it is
    del below
    # PyTorch's allocator wants most of it: the window moves above what stays.
    with torch.cuda.stream(torch.cuda.Stream()):
        native = taken(300)
    assert in_the_arena() < 150
    del native
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if off:
        torch_lms.disable()
    del squatter
    if off:
        torch_lms.enable(device="cuda", limit="512MiB", min_block="1MiB", plan="off")
        assert in_the_arena() == 0
    whole = taken(470)
    del whole
    torch_lms.disable()


if __name__ == "__main__":
    main(sys.argv[1:] == ["off"])
