"""Operators that need nearly all of the limit, or more than that for their workspace."""

from __future__ import annotations

import pytest
import torch
from stress import harness

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
MIB = 1 << 20


def test_a_result_takes_pages_wherever_they_are() -> None:
    """What the operator has pinned leaves no stretch of addresses that is long enough."""
    torch.cuda.empty_cache()
    size = 128 * MIB
    with harness.managed("cuda", limit=33 * size // 10, min_block="1MiB") as package:

        def bytes_of(part: float, value: int) -> torch.Tensor:
            return torch.full((int(size * part),), value, dtype=torch.uint8, device="cuda")

        between = bytes_of(0.3, 0)
        first = bytes_of(1, 3)
        between_too = bytes_of(0.3, 0)
        second = bytes_of(1, 4)
        del between, between_too
        joins = package.memory_stats("cuda")["arena.joins"]
        result = first + second
        assert package.memory_stats("cuda")["arena.joins"] > joins
        assert bool((result == 7).all())
        assert bool((first == 3).all()) and bool((second == 4).all())


@pytest.mark.parametrize("kernel", [1, 3])
def test_it_goes_on_only_if_the_user_allows_another_algorithm(kernel: int) -> None:
    """A convolution in TF32, for which cuDNN wants another layout, and room for copies in it."""
    with torch.backends.cudnn.flags(deterministic=False, benchmark=False, allow_tf32=True):
        torch.cuda.empty_cache()
        layer = torch.nn.Conv2d(64, 64, kernel, padding=kernel // 2).cuda().requires_grad_(False)
        x = torch.rand(1, 64, 1024, 1024, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        expected = layer(x).cpu()
        workspace = torch.cuda.max_memory_allocated() - before - expected.nbytes
        if workspace < 64 * MIB:
            pytest.skip(f"cuDNN takes a workspace of {workspace} bytes here")
        limit = expected.nbytes + workspace // 2  # beside x, which is there already
        with (
            harness.managed("cuda", limit=limit, min_block="1MiB", slices="parts"),
            pytest.raises(torch.OutOfMemoryError, match="other_algorithms=True"),
        ):
            layer(x)
        with harness.managed(
            "cuda", limit=limit, min_block="1MiB", other_algorithms=True, slices="parts"
        ) as package:
            try:
                first = layer(x).cpu()
            except torch.OutOfMemoryError as error:
                assert "needs at least" in str(error)
                pytest.skip("cuDNN has no algorithm that needs less here")
            assert package.memory_stats("cuda")["op_changes"] == 1
            for _ in range(3):
                assert torch.equal(layer(x).cpu(), first)
            stats = package.memory_stats("cuda")
        assert stats["op_changes"] == 1, "the thread remembers"
        assert stats["device.bytes.peak"] <= stats["limit"]
        torch.testing.assert_close(first, expected, rtol=1e-2, atol=1e-2)


def test_a_workspace_beyond_the_limit_changes_no_bit() -> None:
    """It lies in host memory, with all that the convolution reads and makes."""
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=True):
        torch.cuda.empty_cache()
        layer = torch.nn.Conv3d(16, 16, 3, padding=1).cuda()
        x = torch.rand(1, 16, 160, 160, 160, device="cuda").requires_grad_()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            workspace = -layer(x).nbytes
        workspace += torch.cuda.max_memory_allocated() - before
        limit = workspace * 3 // 4 - x.nbytes  # beside x, which is there already
        if limit < 64 * MIB:
            pytest.skip(f"cuDNN takes a workspace of {workspace} bytes here")

        def step() -> list[torch.Tensor]:
            layer.zero_grad()
            x.grad = None
            y = layer(x)
            (y * y).sum().backward()
            return [t.detach().cpu() for t in (y, x.grad, layer.weight.grad, layer.bias.grad)]

        expected = step()
        layer.zero_grad()
        x.grad = None
        torch._C._cuda_clearCublasWorkspaces()  # they may lie where cuDNN's was
        torch.cuda.empty_cache()
        with harness.managed("cuda", limit=limit, min_block="1MiB") as package:
            for _ in range(2):
                got = step()
                assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
            stats = package.memory_stats("cuda")
        assert stats["limit"] < workspace
        assert stats["op_changes"] == 0
        assert stats["slices.in_place"] > 0
        assert stats["device.bytes.peak"] <= stats["limit"]
