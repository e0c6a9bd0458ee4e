"""What takes room beside LMS, on the model of CUDA (costless): left by a run before LMS, or in use.

cuBLAS's workspaces lie where there was room at the time: in a segment of a tensor that is gone.
"""

from __future__ import annotations

import sys
import threading

import torch

import torch_lms
from torch_lms import _blocks

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


def too_large() -> str:
    try:
        torch.empty(290 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("it found room")


def in_use() -> None:
    torch_lms.enable(device="cuda", limit="320MiB", plan="off", min_block="1MiB")
    small = [torch.empty(MIB // 2, dtype=torch.uint8, device="cuda") for _ in range(100)]
    said = too_large()
    assert "50.0 MiB of the limit are in use that LMS cannot move" in said, said
    assert "other operators" not in said, said
    stats = torch_lms.memory_stats()
    assert stats["device.bytes.peak"] <= stats["limit"], "small tensors are part of what is limited"
    del small
    unused = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert "64.0 MiB of the limit are in use that LMS cannot move" in too_large()
    unused.zero_()
    heard: list[str] = []
    with _blocks.scope():
        _blocks.access(unused)
        other = threading.Thread(target=lambda: heard.append(too_large()))
        other.start()
        other.join()
    assert "64.0 MiB of the limit are in use by other operators" in heard[0], heard
    assert "cannot move" not in heard[0], heard


if __name__ == "__main__":
    if sys.argv[1:] == ["in use"]:
        in_use()
    else:
        main(sys.argv[1:] == ["graph"])
