"""An extension that works on CUDA tensors through ``data_ptr()``.

``test_api_extensions_cuda.py`` runs it on the model of CUDA, which copies but does not compute, and
on a machine with one on a GPU.
"""

from __future__ import annotations

import sys
from types import ModuleType

import extension
import torch

import torch_lms

MIB = 1 << 20
N, COUNT = 3 * MIB, 12  # 12 MiB each


def full(value: float) -> torch.Tensor:
    return torch.full((N,), float(value)).to("cuda")


def is_all(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor.cpu() == value).all())


def clean_blocks_are_written(raw: ModuleType) -> None:
    """Its copy below is older than what it then has."""
    with torch_lms.managed(limit="64MiB", device="cuda", plan="off"):
        tensors = [full(i) for i in range(COUNT)]
        for repeat in range(3):
            for i, tensor in enumerate(tensors):
                assert is_all(tensor, i + repeat)  # it has come back, and is clean
                raw.copy(tensor, full(i + repeat + 1))
        raw.copy_all([tensors[:2], [full(-1), full(-2)]])
        torch_lms.reclaim_inactive()
        assert is_all(tensors[0], -1) and is_all(tensors[1], -2)
        assert torch_lms.memory_stats("cuda")["kept.bytes.current"] == 0


def results_are_seen(raw: ModuleType, stress: bool | str) -> None:
    with torch_lms.managed(limit="1GiB", min_block=1, device="cuda", plan="off", stress=stress):
        x = full(2) * 3
        made = raw.duplicate(x)
        assert is_all(made, 6) and torch.ops.lms.state(made) != "resident"
        holder = raw.Holder(made)
        y = full(1) + 1
        holder.write(y)
        assert is_all(y, 6) and is_all(raw.inner.duplicate(y + 1), 7)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            raw.copy(y, raw.duplicate(x + 1))
        torch.cuda.current_stream().wait_stream(side)
        assert is_all(y, 7)
        assert is_all(raw.counted(N, "cuda") - torch.arange(N, device="cuda"), 1)


def steps_are_planned(raw: ModuleType) -> bool:
    """An optimizer of the extension's own; whether the weights are those of a plain run."""

    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights = [torch.randn(2048, 1024, device="cuda") for _ in range(8)]
        for weight in weights:
            weight.requires_grad_()
        for _ in range(14):
            x = torch.ones(2048, 1024, device="cuda")
            for weight in weights:
                x = torch.sin(x * weight) + 0.1
            x.sum().backward()
            with torch.no_grad():
                for i in range(0, 8, 2):
                    pair = weights[i : i + 2]
                    raw.copy_all([pair, [w - 1e-3 * w.grad for w in pair]])
            for weight in weights:
                weight.grad = None
        return [weight.detach().cpu() for weight in weights]

    plain = train()
    # Under less than 128 MiB there is no arena, and no plan.
    with torch_lms.managed(limit="144MiB", device="cuda", plan="now", plan_seconds=1):
        ours = train()
        stats = torch_lms.memory_stats("cuda")
    assert stats["plan.steps"] > 0 and stats["evictions"] > 0, stats
    return all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


def main(on_model: str = "") -> None:
    """``on_model``: what can be shown there, ``bytes`` or, in a costless run, ``plans``."""
    raw = sys.modules["lms_test_raw_cuda"] = extension.load(extension.build(cuda=True))
    if on_model == "plans":
        steps_are_planned(raw)
        return
    clean_blocks_are_written(raw)
    if on_model:
        return
    for stress in (True, "drop"):
        results_are_seen(raw, stress)
    assert steps_are_planned(raw)


if __name__ == "__main__":
    main(sys.argv[1])
