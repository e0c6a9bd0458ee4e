"""Convolutions whose workspace alone is too much for the limit."""

from __future__ import annotations

import pytest
import torch
from stress import harness

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
MIB = 1 << 20


class _Step:
    """Two convolutions in TF32, for which cuDNN wants another layout, and room for copies in it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.Conv2d(64, 64, 3, padding=1)
        ).cuda()
        self.image = torch.rand(1, 3, 1024, 1024, device="cuda")

    def __call__(self) -> list[torch.Tensor]:
        self.layers.zero_grad(set_to_none=True)
        result = self.layers(self.image)
        result.backward(torch.ones_like(result))
        return [parameter.grad for parameter in self.layers.parameters()]


def test_it_goes_on_only_if_the_user_allows_another_algorithm() -> None:
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=True):
        torch.cuda.empty_cache()
        step = _Step()
        x = torch.rand(1, 64, 1024, 1024, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        plain = step.layers[1](x).detach()
        workspace = torch.cuda.max_memory_allocated() - before - plain.nbytes
        if workspace < plain.nbytes * 3 // 2:
            pytest.skip(f"cuDNN takes a workspace of {workspace} bytes here")
        # Three tensors of this size are the most that any operator has. With half of another they
        # have less room than two and the workspace.
        limit = 3 * plain.nbytes + plain.nbytes // 2 - 32 * MIB
        del x, plain
        with (
            harness.managed("cuda", limit=limit, min_block="1MiB"),
            pytest.raises(torch.OutOfMemoryError, match="other_algorithms=True"),
        ):
            step()
        expected = step()
        with harness.managed(
            "cuda", limit=limit, min_block="1MiB", plan="now", other_algorithms=True
        ) as package:
            first = [gradient.cpu() for gradient in step()]
            changes = package.memory_stats("cuda")["op_changes"]
            assert changes > 0
            for _ in range(8):
                again = [gradient.cpu() for gradient in step()]
            stats = package.memory_stats("cuda")
        assert stats["op_changes"] == changes, "the threads remember"
        assert stats["device.bytes.peak"] <= stats["limit"]
        for one, other, plain in zip(first, again, expected, strict=True):
            assert torch.equal(one, other)
            torch.testing.assert_close(
                one, plain.cpu(), rtol=1e-2, atol=1e-2 * float(plain.abs().max())
            )
