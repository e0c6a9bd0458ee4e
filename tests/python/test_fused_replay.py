"""What one kernel computes again of a batch norm, an addition and a relu has the bits of the three
calls, whatever the numbers, types and layouts are; of cuDNN's batch norm as well."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator

import pytest
import torch
from fused_support import any_bits, bits_of, per_channel
from stress import harness
from stress.probe import repeatable_cudnn
from torch import Tensor, nn

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHAINS = ("relu", "add", "add relu")
MORE_CHAINS = ("", "leaky", "add leaky")
PARAMETERS = ("same", "float32", "none", "weight")
LAYOUTS = ("contiguous", "last", "last, padded", "offset")
LIMIT = "512MiB"


@dataclasses.dataclass(frozen=True)
class Case:
    """One chain on one kind of tensors."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str
    parameters: str
    chain: str
    training: bool
    norm: str = "native"

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def generator(case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr((case.shape, case.parameters)).encode()))


def laid_out(numbers: Tensor, case: Case) -> Tensor:
    """On the device, in the case's layout."""
    if case.layout == "offset":
        # One element off every boundary of a vector.
        flat = torch.cat([numbers[:1], numbers]).cuda()
        return flat[1:].view(case.shape)
    placed = numbers.view(case.shape)
    if case.layout == "last":
        placed = placed.contiguous(memory_format=torch.channels_last)
    elif case.layout == "last, padded":
        # As above, but the first of many elements is none of the tensor's.
        flat = torch.cat([numbers[:3], numbers]).cuda()
        n, c, h, w = case.shape
        return flat[3:].view(n, h, w, c).permute(0, 3, 1, 2)
    return placed.cuda()


@functools.lru_cache(maxsize=64)
def data_of(case: Case) -> dict[str, Tensor | None]:
    """On the host; the same for every chain."""
    random = generator(case)
    count, channels = torch.Size(case.shape).numel(), case.shape[1]
    data: dict[str, Tensor | None] = dict.fromkeys(("weight", "bias", "mean", "variance"))
    if case.training:
        x = torch.randn(case.shape, generator=random).mul_(3)
        # Also where all of a channel is too small to be normal.
        if case.norm == "cudnn":
            x[:, -2:] *= 1e-39
        data["x"] = x.flatten().to(case.dtype)
    else:
        data["x"] = any_bits(count, case.dtype, random)
        data["mean"] = per_channel(channels, torch.float32, random, 7)
        data["variance"] = per_channel(channels, torch.float32, random, 3).abs()
    data["other"] = any_bits(count, case.dtype, random)
    dtype = torch.float32 if case.parameters == "float32" else case.dtype
    if case.parameters != "none":
        data["weight"] = per_channel(channels, dtype, random, 0)
    if case.parameters in ("same", "float32"):
        data["bias"] = per_channel(channels, dtype, random, 5)
    return data


def run(case: Case, data: dict[str, Tensor | None]) -> Tensor:
    def small(name: str) -> Tensor | None:
        tensor = data[name]
        return None if tensor is None else tensor.cuda()

    x, other = data["x"], data["other"]
    assert x is not None and other is not None
    norm = torch.native_batch_norm if case.norm == "native" else torch.ops.aten.cudnn_batch_norm
    y: Tensor = norm(
        laid_out(x, case),
        small("weight"),
        small("bias"),
        small("mean"),
        small("variance"),
        case.training,
        0.1,
        1e-5,
    )[0]
    if "add" in case.chain:
        y.add_(laid_out(other, case))
    if "relu" in case.chain:
        y.relu_()
    if "leaky" in case.chain:
        nn.functional.leaky_relu_(y, 0.01)
    return y


def first_difference(case: Case, expected: Tensor, actual: Tensor) -> str | None:
    if torch.equal(expected, actual):
        return None
    at = torch.nonzero(expected != actual).flatten()
    first = int(at[0])
    mask = 2 ** (8 * case.dtype.itemsize) - 1
    return (
        f"{case}: {at.numel()} of {expected.numel()} differ, the first at {first}: "
        f"{int(expected[first]) & mask:#x} by three calls, {int(actual[first]) & mask:#x} by one"
    )


def check(cases: list[Case], min_block: int, *, fused: bool | None = True) -> None:
    """Each case as in plain PyTorch, with everything dropped; by the kernel, or not at all (None:
    by whatever computes it)."""
    assert cases, "nothing is checked"
    data = [data_of(dataclasses.replace(case, chain="")) for case in cases]
    expected = [bits_of(run(case, one)) for case, one in zip(cases, data, strict=True)]
    wrong: list[str] = []
    not_by_kernel: list[Case] = []
    with harness.managed("cuda", stress="drop", min_block=min_block, limit=LIMIT) as package:

        def count(key: str) -> int:
            return int(package.memory_stats("cuda")[key])

        for case, one, bits in zip(cases, data, expected, strict=True):
            y = run(case, one)
            before, remakes = count("replays.fused"), count("remakes")
            difference = first_difference(case, bits, bits_of(y))
            if difference is not None:
                wrong.append(difference)
            assert count("remakes") > remakes, f"{case}: it was not computed again"
            if fused is not None and (count("replays.fused") > before) != fused:
                not_by_kernel.append(case)
        assert count("replays.fused_failed") == 0, "a kernel could not be made or queued"
    assert not wrong, f"{len(wrong)} of {len(cases)} cases: " + "; ".join(wrong[:6])
    assert not not_by_kernel, (
        f"{'not ' if fused else ''}by the kernel, of {len(cases)}: "
        f"{len(not_by_kernel)}, such as {not_by_kernel[:4]}"
    )


def shapes(channels: int, layout: str) -> Iterator[tuple[int, ...]]:
    if layout.startswith("last"):
        yield from (
            (4, channels, 1, 1),
            (2, channels, 7, 7),
            (3, channels, 7, 1),
            (1, channels, 50, 50),
        )
        return
    yield from (
        (4, channels),
        (4, channels, 1, 1),
        (3, channels, 7),
        (1, channels, 49),
        (2, channels, 7, 7),
        (2, channels, 50, 50),
        (2, channels, 2, 4, 8),
        (1, channels, 3, 5, 7),
    )


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    with repeatable_cudnn():
        yield


@pytest.mark.parametrize("channels", [3, 5, 64, 100])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits(dtype: torch.dtype, layout: str, channels: int) -> None:
    # Statistics and weights must be small to LMS, and the data must not.
    min_block = 4 * channels + 1
    cases = [
        Case(dtype, shape, layout, parameters, chain, training)
        for shape, parameters, chain, training in itertools.product(
            shapes(channels, layout), PARAMETERS, CHAINS, (False, True)
        )
    ]
    check([case for case in cases if case.bytes >= min_block], min_block)


@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_of_other_chains(dtype: torch.dtype, layout: str) -> None:
    cases = [
        Case(dtype, shape, layout, parameters, chain, training)
        for shape, parameters, chain, training in itertools.product(
            shapes(64, layout), ("same", "none"), MORE_CHAINS, (False, True)
        )
    ]
    check(cases, 4 * 64 + 1)


CUDNN_SHAPES = (
    (4, 64, 128, 128),
    (2, 5, 300, 301),
    (1, 16, 40, 44, 48),
    (2, 100, 181, 183),
    (1, 3, 517, 509),
    (70000, 8),
)


@pytest.mark.parametrize("shape", CUDNN_SHAPES, ids=str)
def test_same_bits_as_cudnn(shape: tuple[int, ...]) -> None:
    """Kernels for large planes round as PyTorch's own does: seen with cuDNN 9 on Hopper GPUs."""
    cases = [
        Case(torch.float32, shape, "contiguous", "same", chain, training=True, norm="cudnn")
        for chain in CHAINS + MORE_CHAINS
    ]
    check(cases, 4 * shape[1] + 1)


def test_cudnn_with_another_kernel() -> None:
    """Where it rounds otherwise, or is not looked at, it is called again itself."""
    for dtype, shape, layout in (
        (torch.float32, (2, 32, 7, 9), "contiguous"),
        (torch.float32, (64, 512, 7, 7), "contiguous"),
        (torch.float16, (4, 16, 128, 128), "contiguous"),
        (torch.float32, (4, 16, 128, 128), "offset"),
    ):
        cases = [
            Case(dtype, shape, layout, "float32", chain, training=True, norm="cudnn")
            for chain in ("", "relu", "add")
        ]
        check(cases, 4 * shape[1] + 1, fused=False)


@pytest.mark.parametrize("shape", [(4, 64, 128, 128), (2, 32, 14, 14)], ids=str)
def test_cudnn_for_channels_last(shape: tuple[int, ...]) -> None:
    cases = [
        Case(torch.float32, shape, "last", "same", chain, training=True, norm="cudnn")
        for chain in ("", "relu", "add relu")
    ]
    check(cases, 4 * shape[1] + 1, fused=None)


def test_cudnn_of_numbers_that_tell_nothing() -> None:
    """Of zeros every way of rounding makes the same; so it stays with cuDNN."""

    def program() -> Tensor:
        x = torch.zeros(3, 16, 140, 140, device="cuda")
        weight = torch.linspace(-1, 1, 16, device="cuda")
        norm = torch.ops.aten.cudnn_batch_norm
        y: Tensor = norm(x, weight, weight, None, None, True, 0.1, 1e-5)[0]
        return y.relu_()

    compare_programs(program, fused=False)


def test_more_channels_than_threads() -> None:
    """What the device runs at once is no multiple of a row of channels, or less than one."""
    for channels, dtype in itertools.product((24, 1000, 2_400_000), DTYPES):
        cases = [
            Case(dtype, (3, channels, 1, 1), "last", "float32", chain, training=True)
            for chain in CHAINS
        ]
        check(cases, 4 * channels + 1)


def test_many_elements() -> None:
    """Every thread comes round several times."""
    for dtype, layout in itertools.product(DTYPES, ("contiguous", "last", "offset")):
        cases = [Case(dtype, (4, 96, 112, 112), layout, "float32", "add relu", training=True)]
        check(cases, 4096)


def test_types_without_a_kernel_are_computed_call_by_call() -> None:
    cases = [
        Case(torch.float64, (2, 5, 7, 7), "contiguous", "same", chain, training=True)
        for chain in CHAINS
    ]
    check(cases, 8 * 5 + 1, fused=False)


def compare_programs(program: Callable[[], Tensor], *, fused: bool) -> None:
    expected = bits_of(program())
    with harness.managed("cuda", stress="drop", min_block=512, limit=LIMIT) as package:
        before = int(package.memory_stats("cuda")["replays.fused"])
        assert torch.equal(expected, bits_of(program()))
        grown = int(package.memory_stats("cuda")["replays.fused"]) - before
    assert (grown > 0) == fused, f"{grown} by the kernel"


def numbers(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=random).to(torch.bfloat16).cuda()


def normalised(x: Tensor) -> Tensor:
    return torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0]


def test_layouts_without_a_kernel_are_computed_call_by_call() -> None:
    def last_3d() -> Tensor:
        x = numbers(2, 16, 5, 6, 7).contiguous(memory_format=torch.channels_last_3d)
        return normalised(x).relu_()

    def holes() -> Tensor:
        return normalised(numbers(2, 16, 9, 18)[..., ::2]).relu_()

    compare_programs(last_3d, fused=False)
    compare_programs(holes, fused=False)


def test_other_calls_are_computed_as_they_are() -> None:
    """In the middle of a lineage, and after its head."""

    def scaled() -> Tensor:
        y = normalised(numbers(2, 16, 9, 9))
        return y.add_(numbers(2, 16, 9, 9), alpha=0.5).relu_()

    def broadcast() -> Tensor:
        return normalised(numbers(2, 16, 9, 9)).add_(numbers(1, 16, 1, 1)).relu_()

    def other_layout() -> Tensor:
        other = numbers(2, 16, 9, 9).contiguous(memory_format=torch.channels_last)
        return normalised(numbers(2, 16, 9, 9)).add_(other).relu_()

    def part() -> Tensor:
        y = normalised(numbers(2, 16, 9, 9))
        y[1:].relu_()
        return y

    def to_itself() -> Tensor:
        y = normalised(numbers(2, 16, 9, 9))
        return y.add_(y)

    def then_more() -> Tensor:
        y = normalised(numbers(2, 16, 9, 9)).relu_()
        return y.add_(numbers(2, 16, 9, 9)).mul_(3).relu_()

    for program in (scaled, broadcast, other_layout, part, to_itself, then_more):
        compare_programs(program, fused=True)


def test_operands_that_are_dropped_themselves() -> None:
    def program() -> Tensor:
        x, y = numbers(2, 16, 9, 9), numbers(2, 16, 9, 9)
        for _ in range(3):
            # Dead by the time when they are needed again.
            y = normalised(x * 2).add_(normalised(y + 1).relu_()).relu_()
            x = x + y
        return y

    compare_programs(program, fused=True)


class Norm(nn.BatchNorm2d):
    """PyTorch's own kernel, whatever cuDNN could do."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return super().forward(x)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(Norm(width) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        y += x
        return self.relu(y)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_residual_networks(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    """Two steps of training: weights and running statistics to the last bit."""

    def train() -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 32, 3), Norm(32), Residual(32), Residual(32))
        model = model.cuda().to(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(2):
            random = torch.Generator("cuda").manual_seed(step)
            x = torch.randn(4, 3, 30, 30, device="cuda", generator=random)
            x = x.contiguous(memory_format=memory_format)
            with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([value.float().flatten() for value in model.state_dict().values()])

    expected = bits_of(train())
    if not torch.equal(expected, bits_of(train())):
        pytest.skip("the plain run does not repeat itself to the bit here")
    compare_programs(train, fused=True)


@pytest.mark.parametrize("leaky", [False, True])
def test_networks_with_cudnn(leaky: bool) -> None:
    """As above, with whatever batch norm PyTorch takes."""

    def train() -> Tensor:
        torch.manual_seed(0)
        act = nn.LeakyReLU(0.01, inplace=True) if leaky else nn.ReLU(inplace=True)
        layers: list[nn.Module] = []
        for width in (3, 16, 16):
            layers += [nn.Conv2d(width, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), act]
        model = nn.Sequential(*layers).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            random = torch.Generator("cuda").manual_seed(step)
            model(
                torch.randn(4, 3, 140, 140, device="cuda", generator=random)
            ).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([value.float().flatten() for value in model.state_dict().values()])

    expected = bits_of(train())
    assert torch.equal(expected, bits_of(train())), "the plain run repeats itself"
    compare_programs(train, fused=True)
