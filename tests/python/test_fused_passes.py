"""Products with a number for each column or row, sums of two types, and conversions have the calls'
bits when one kernel computes them again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fused_support import any_bits, bits_of, per_channel
from stress import harness
from torch import Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def check_by_kernel(program: Callable[[], Tensor]) -> None:
    """The program has the same bits where all is computed again, some of it by the kernel."""
    expected = bits_of(program())
    with harness.managed("cuda", stress="drop", min_block=512, limit="512MiB") as package:
        before = int(package.memory_stats("cuda")["replays.fused"])
        assert torch.equal(expected, bits_of(program()))
        after = int(package.memory_stats("cuda")["replays.fused"])
        assert int(package.memory_stats("cuda")["replays.fused_failed"]) == 0
    assert after > before, "not by the kernel"


@pytest.mark.parametrize("other_first", [False, True])
@pytest.mark.parametrize(
    ("rows", "per_row", "dims", "offset"),
    [
        ((4, 30), False, 1, 0),
        ((200,), False, 2, 0),
        ((9,), False, 1, 1),
        ((4, 30), True, 3, 0),
        ((200,), True, 2, 0),
        ((9,), True, 2, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [8, 100, 37, 2048])
def test_products(
    dtype: torch.dtype,
    width: int,
    rows: tuple[int, ...],
    per_row: bool,
    dims: int,
    offset: int,
    other_first: bool,
) -> None:
    random = torch.Generator().manual_seed(width)
    shape = (*rows, width)
    x = any_bits(torch.Size(shape).numel() + offset, torch.float32, random)
    if per_row:
        numbers = per_channel(torch.Size(rows).numel(), torch.float32, random, 0).view(*rows, 1)
    else:
        numbers = per_channel(width, torch.float32, random, 0).view((1,) * (dims - 1) + (width,))

    def product() -> tuple[Tensor, Tensor]:
        factor, other = x.cuda()[offset:].view(shape), numbers.cuda()
        return factor, other * factor if other_first else factor * other

    def alone() -> Tensor:
        _, made = product()
        return made.clone()

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

    programs = (alone, afterwards, at_once)
    expected = [bits_of(program()) for program in programs]
    least = 4 * max(width, torch.Size(rows).numel()) + 1
    with harness.managed("cuda", stress="drop", min_block=least, limit="512MiB") as package:
        by_kernel = [int(package.memory_stats("cuda")["replays.fused"])]
        for program, bits in zip(programs, expected, strict=True):
            assert torch.equal(bits, bits_of(program())), program.__name__
            by_kernel.append(int(package.memory_stats("cuda")["replays.fused"]))
        assert int(package.memory_stats("cuda")["replays.fused_failed"]) == 0
    assert by_kernel[0] < by_kernel[1] < by_kernel[2], "not by the kernel"


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1037,), (8, 64), (11, 5, 7), (130, 2048)], ids=str)
def test_conversions(shape: tuple[int, ...], dtype: torch.dtype, offset: int) -> None:
    random = torch.Generator().manual_seed(len(shape))
    x = any_bits(torch.Size(shape).numel() + offset, torch.float32, random)

    def program() -> Tensor:
        given = x.cuda()[offset:].view(shape)
        converted = given.to(dtype)
        return torch.stack([converted, (given * 0 == 0).to(dtype), converted])

    check_by_kernel(program)


@pytest.mark.parametrize("narrow_first", [False, True])
@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1037,), (8, 64), (11, 5, 7), (130, 2048)], ids=str)
def test_sums(shape: tuple[int, ...], dtype: torch.dtype, offset: int, narrow_first: bool) -> None:
    random = torch.Generator().manual_seed(len(shape))
    count = torch.Size(shape).numel() + offset
    x, y = any_bits(count, torch.float32, random), any_bits(count, dtype, random).flip(0)

    def program() -> Tensor:
        wide, narrow = x.cuda()[offset:].view(shape), y.cuda()[offset:].view(shape)
        added = narrow + wide if narrow_first else wide + narrow
        return torch.stack([added, wide * 2, torch.add(wide, narrow, alpha=-1), added])

    check_by_kernel(program)
