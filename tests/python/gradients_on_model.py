"""Autograd adds up gradients in place where nobody else has them: also where they are small, and an
operator that has read one can be run again (model of CUDA, costless)."""

from __future__ import annotations

from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

import torch_lms


def counts() -> Counter[str]:
    """Additions of the backward pass of residual layers, whose gradients are below a block, while
    those of their weights are blocks computed from them."""
    torch.manual_seed(0)
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    weights = [torch.randn(64, 256, 32, device="cuda", requires_grad=True) for _ in range(3)]
    y = x * 2
    for weight in weights:
        y = y + (y.unsqueeze(-1) * weight).sum(-1)
    loss = y.sum()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        loss.backward()
    names = Counter(event.name for event in seen.events())
    return Counter({name: names[name] for name in ("aten::add", "aten::add_")})


def main() -> None:
    plain = counts()
    assert plain["aten::add_"] > 0, plain
    for stress in (True, "drop"):
        torch_lms.enable(device="cuda", limit="256MiB", min_block="1MiB", stress=stress)
        managed = counts()
        torch_lms.disable()
        assert managed == plain, f"{stress}: {managed}"


if __name__ == "__main__":
    main()
