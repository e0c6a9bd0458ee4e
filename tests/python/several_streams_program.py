"""Allocates on many streams, on the model of CUDA, and prints the most that was reserved.

``test_streams_limit.py`` runs it, with the model preloaded and costless.
"""

from __future__ import annotations

import random
import sys

import torch

import torch_lms

MIB = 1 << 20
LIMIT = 200 * MIB


def tensor(chance: random.Random, *sizes: int) -> torch.Tensor:
    """One of these many MiB, used once."""
    return torch.empty(chance.choice(sizes) * MIB // 4, device="cuda").add_(1)


def main() -> None:
    torch_lms.enable(device="cuda", limit=LIMIT, host_limit="2GiB", plan="off")
    chance = random.Random(int(sys.argv[1]))
    streams = [torch.cuda.Stream() for _ in range(6)]
    held: list[torch.Tensor] = []
    if "kept" in sys.argv:
        # What stays lies high, above what comes and goes.
        below = [torch.empty(8 * MIB // 4, device="cuda") for _ in range(19)]
        kept = torch.empty(8 * MIB // 4, device="cuda")
        kept.data_ptr()
        below.clear()
        with torch.cuda.stream(streams[0]):
            tensor(chance, 150)
    most = 0
    for _ in range(300):
        held.append(tensor(chance, 2, 4, 8, 12))
        del held[:-50]
        chance.choice(held).add_(1)
        stream = chance.choice(streams)
        with torch.cuda.stream(stream):
            dies = tensor(chance, 2, 5, 11, 17, 25, 35)
            lives = tensor(chance, 2, 5, 11, 17)
            del dies
        torch.cuda.current_stream().wait_stream(stream)
        del lives
        most = max(most, torch_lms.memory_stats("cuda")["device.reserved.current"])
    print(f"{most} of {LIMIT}")


if __name__ == "__main__":
    main()
