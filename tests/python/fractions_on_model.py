"""The user's own bound on the device's memory holds beside the limit, before enable() and after.

``test_gpu_limits.py`` runs it on a GPU, ``test_streams_limit.py`` on the model of CUDA.
"""

from __future__ import annotations

import torch

import torch_lms

MIB = 1 << 20


def bound(mib: int) -> float:
    """As a user writes it."""
    return mib * MIB / torch.cuda.get_device_properties(0).total_memory


def limit() -> int:
    return round(torch_lms.memory_stats("cuda")["limit"] / MIB)


def take(count: int) -> list[torch.Tensor]:
    """Of 16 MiB each."""
    return [torch.full((4 * MIB,), float(i), device="cuda") for i in range(count)]


def main() -> None:
    torch.cuda.set_per_process_memory_fraction(bound(400))
    torch_lms.enable(limit="600MiB", device="cuda", min_block="1MiB", plan="off")
    assert limit() == 400, "the fraction was there before"
    assert abs(torch.cuda.get_per_process_memory_fraction() - bound(400)) < 1e-9
    held = take(20)
    torch.cuda.set_per_process_memory_fraction(bound(256))
    assert limit() == 256
    assert abs(torch.cuda.get_per_process_memory_fraction() - bound(256)) < 1e-9
    torch.cuda.reset_peak_memory_stats()
    held += take(4)
    assert torch.cuda.max_memory_reserved() <= 256 * MIB
    assert torch_lms.memory_stats("cuda")["evictions"] > 0
    torch.cuda.set_per_process_memory_fraction(bound(900))
    assert limit() == 600, "the limit that was given"
    torch_lms.enable(limit="300MiB", device="cuda", min_block="1MiB", plan="off")
    assert limit() == 300
    try:
        torch.cuda.set_per_process_memory_fraction(1.5)
        raise AssertionError("no error")
    except (RuntimeError, ValueError):
        assert limit() == 300
    torch.cuda.set_per_process_memory_fraction(bound(800))
    torch_lms.disable()
    torch_lms.enable(device="cuda", min_block="1MiB", plan="off")
    most = limit()
    held += take(4)
    torch.cuda.set_per_process_memory_fraction(bound(800))
    assert abs(limit() - most) <= 2, "what lies in the arena is LMS's own"
    torch_lms.disable()
    assert abs(torch.cuda.get_per_process_memory_fraction() - bound(800)) < 1e-9
    del held


if __name__ == "__main__":
    main()
