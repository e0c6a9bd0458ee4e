"""What is converted from a product that has died has the bits of both calls when one kernel
computes it again."""

from __future__ import annotations

import pytest
import torch
from fused_support import any_bits, bits_of, per_channel
from stress import harness
from torch import Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("row_first", [False, True])
@pytest.mark.parametrize(
    ("rows", "row_dims", "offset"), [((4, 30), 1, 0), ((200,), 2, 0), ((9,), 1, 1)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [8, 100, 37, 2048])
def test_converted_products(
    dtype: torch.dtype,
    width: int,
    rows: tuple[int, ...],
    row_dims: int,
    offset: int,
    row_first: bool,
) -> None:
    random = torch.Generator().manual_seed(width)
    shape = (*rows, width)
    x = any_bits(torch.Size(shape).numel() + offset, torch.float32, random)
    row = per_channel(width, torch.float32, random, 0).view((1,) * (row_dims - 1) + (width,))

    def product() -> tuple[Tensor, Tensor]:
        factor, other = x.cuda()[offset:].view(shape), row.cuda()
        return factor, other * factor if row_first else factor * other

    def at_once() -> Tensor:
        made = product()[1]
        return torch.cat([made.to(dtype).flatten(), made.to(dtype).flatten()])

    def afterwards() -> Tensor:
        factor, made = product()
        converted = made.to(dtype)
        again = made.view(-1, width).to(dtype)
        del made
        rest = (factor * 0 == 0).to(dtype)
        return torch.stack([converted.flatten(), again.flatten(), rest.flatten()])

    expected = bits_of(afterwards()), bits_of(at_once())
    with harness.managed("cuda", stress="drop", min_block=4 * width + 1, limit="512MiB") as package:
        before = int(package.memory_stats("cuda")["replays.fused"])
        assert torch.equal(expected[0], bits_of(afterwards()))
        after = int(package.memory_stats("cuda")["replays.fused"])
        assert torch.equal(expected[1], bits_of(at_once()))
        assert int(package.memory_stats("cuda")["replays.fused_failed"]) == 0
    assert after > before, "not by the kernel"
