"""Trains on the model of CUDA, and prints what LMS took from the heap in a few steady steps.

``test_host_allocations.py`` runs it, with the model preloaded and costless.
"""

from __future__ import annotations

import ctypes

import torch
from torch import nn

import torch_lms

STEPS = 4
MODEL = ctypes.CDLL(None)


class Layer(nn.Module):
    """Products, a normalisation, dropout, and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.narrow(torch.relu(self.wide(self.norm(x)))), -1)
        return x + self.drop(y)


def main() -> None:
    torch_lms.enable(device="cuda", limit=700 << 20, host_limit="1GiB", plan="off")
    model = nn.Sequential(*(Layer(512) for _ in range(3))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.empty(4, 512, 512, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(6):
        step()
    MODEL.model_cuda_count_allocations(b"liblms_torch")
    for _ in range(STEPS):
        step()
    where = ctypes.create_string_buffer(1 << 16)
    MODEL.model_cuda_allocations.restype = ctypes.c_long
    count = MODEL.model_cuda_allocations(where, ctypes.c_size_t(len(where)))
    stats = torch_lms.memory_stats("cuda")
    print(f"evictions {stats['evictions']}, operators {stats['operators']}")
    print(f"{count} allocations")
    print(where.value.decode(), end="")


if __name__ == "__main__":
    main()
