"""Operators that do not fit run in slices: the same bits, under a limit below what they touch."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import torch_lms

MIB = 1 << 20
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
pytestmark = pytest.mark.filterwarnings("ignore")


Bits = list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], bytes]]


def bits(tensors: list[Tensor]) -> Bits:
    """What a program has made: types, shapes, strides and bytes."""
    found = []
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found.append((tensor.dtype, tuple(tensor.shape), tensor.stride(), flat))
    return found


@contextmanager
def sliced(device: str, limit: int, **settings: object) -> Iterator[None]:
    """Managed under ``limit`` more bytes than are in use."""
    settings = {"min_block": 1 << 16, "plan_cache": "off"} | settings
    if device == "cuda":
        # Workspaces lie in segments of the plain run, which could not be given back.
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        limit += torch.cuda.memory_reserved()
    with torch_lms.managed(limit=limit, device=device, **settings):
        yield


def scale(device: str) -> int:
    """How many times as large tensors are on a GPU, whose allocators take memory in 2 MiB."""
    return 128 if device == "cuda" else 1


def numbers(*sizes: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator).to(device=device, dtype=dtype)


Program = Callable[[str], list[Tensor]]


def loss_of_words(device: str) -> list[Tensor]:
    """The end of a language model: log_softmax, nll_loss and back, in float32 from 16 bits."""
    rows = 511 * scale(device)
    hidden = numbers(rows, 16, device=device).requires_grad_()
    head = numbers(2003, 16, device=device, seed=1).requires_grad_()
    target = torch.arange(rows, device=device) % 2003
    target[::7] = -100
    logits = (hidden @ head.t()).bfloat16()
    loss = functional.cross_entropy(logits.float(), target)
    loss.backward()
    return [loss, hidden.grad, head.grad]


def pooled(device: str) -> list[Tensor]:
    """What a U-Net does at its largest tensor, in one sample."""
    x = numbers(1, 13, 150, 154 * scale(device), device=device)
    x.requires_grad_()
    bias = numbers(13, 1, 1, device=device, seed=3).requires_grad_()
    y = functional.gelu(functional.relu(x + bias))
    y = functional.avg_pool2d(functional.max_pool2d(y, 2), 3, stride=1, padding=1)
    (y * y).sum().backward()
    return [y, x.grad]


def joined(device: str) -> list[Tensor]:
    """Cat in the first, a middle, and the last dimension."""
    n = 60 * scale(device)
    a = numbers(n, 50, 70, device=device)
    b = numbers(n, 50, 30, device=device, seed=1)
    c = numbers(1, n * 20, 100, device=device, seed=2)
    d = numbers(1, n * 27, 100, device=device, seed=3)
    e, f = a.view(-1, 10), b.view(-1, 10)
    return [torch.cat([a, b], 2), torch.cat([c, d], 1), torch.cat([e, f[9:99], e])]


def attention_weights(device: str) -> list[Tensor]:
    x = numbers(2, 3, 211, 420 * scale(device), device=device, dtype=torch.bfloat16)
    x.requires_grad_()
    y = functional.softmax(x, -1, dtype=torch.float32)
    (y * numbers(420 * scale(device), device=device, seed=9)).sum().backward()
    return [y, x.grad]


def spread(device: str) -> list[Tensor]:
    """Softmax over a dimension in the middle."""
    x = numbers(23, 17, 801 * scale(device), device=device).requires_grad_()
    y = functional.softmax(x, 1)
    (y * y).sum().backward()
    return [y, x.grad]


def normed(device: str) -> list[Tensor]:
    x = numbers(501, 7 * scale(device), 111, device=device)
    with torch.no_grad():
        weight = numbers(111, device=device, seed=4)
        return list(torch.native_layer_norm(x, (111,), weight, weight, 1e-5))


def in_place(device: str) -> list[Tensor]:
    x = numbers(391, 1003 * scale(device), device=device)
    y = numbers(391, 1003 * scale(device), device=device, seed=1)
    x.mul_(1.25).add_(y, alpha=0.3)
    x.relu_()
    x.masked_fill_(y > 1.5, -2.0)
    y.copy_(x)
    y[:, :1].fill_(3)
    x.zero_()
    return [x, y, functional.silu(y, inplace=True)]


def other_layouts(device: str) -> list[Tensor]:
    x = numbers(1, 133, 131 * scale(device), 24, device=device)
    last = x.permute(0, 3, 1, 2)
    turned = x[0].transpose(0, 1)
    return [
        functional.silu(last) * 0.5,
        last.to(torch.float16),
        torch.sigmoid(turned),
        last + numbers(1, 24, 1, 1, device=device, seed=1),
    ]


def turned(device: str) -> list[Tensor]:
    """Layouts that do not agree: some are cut, some are not."""
    x = numbers(2, 24, 33, 131, device=device)
    last = x.to(memory_format=torch.channels_last)
    apart = x.transpose(1, 2)
    return [
        functional.gelu(last),
        functional.gelu(apart),
        apart.contiguous(),
        last + x,
        last + x[:, :, :1],
        x.new_ones(()).expand(2, 24, 33, 131) * numbers(131, device=device),
        numbers(700, 1, device=device).expand(700, 300) * numbers(300, device=device),
        numbers(700, 1, device=device) * numbers(1, 300, device=device),
        functional.threshold(x, 0.1, 20),
        torch.cat([last, last], 1),
    ]


def looked_up(device: str) -> list[Tensor]:
    rows = 501 * scale(device)
    table = numbers(rows, 301, device=device)
    index = torch.arange(1401 * scale(device), device=device) * 7 % rows
    return [functional.embedding(index, table)]


def messages(device: str) -> list[Tensor]:
    """Between the nodes of a graph and back: each edge has a row of numbers. Whole ones, as a GPU
    adds them in any order."""
    nodes, edges = 1501 * scale(device), 3001 * scale(device)
    x = numbers(nodes, 64, device=device).mul_(8).round_()
    ends = torch.arange(2 * edges, device=device).view(2, edges).mul(7919) % nodes
    sent = x.index_select(0, ends[0])
    wide = ends[1].unsqueeze(-1).expand(edges, 64)
    sums = torch.zeros(nodes, 64, device=device).scatter_add_(0, wide, sent)
    back = sums.gather(0, wide)
    return [sent, sums, back, torch.zeros_like(x).index_add_(0, ends[0], back, alpha=2)]


def chosen_in_rows(device: str) -> list[Tensor]:
    """Along another dimension than the first, and with other layouts and types."""
    x = numbers(401, 640, device=device).mul_(8).round_()
    index = torch.arange(401 * 900, device=device).view(401, 900).mul(7919) % 640
    rows = numbers(401, 900, device=device, seed=1).mul_(8).round_()
    turned = torch.arange(901 * 640, device=device).view(640, 901).mul(31).t() % 401
    whole = x.to(torch.int32)
    return [
        x.gather(1, index),
        x.gather(0, turned),
        x.half().gather(-1, index[:, :1].expand(401, 900)),
        x.clone().scatter_add_(1, index, rows),
        x.half().scatter_add_(1, index, rows.half()),
        whole.index_add_(0, index[0] % 401, rows.to(torch.int32)[:1].expand(900, 900)[:, :640]),
        x.t().index_select(0, index[1]),
    ]


def windows_that_overlap(device: str) -> list[Tensor]:
    """Elements that are several at once: what is added to them comes in the order of the whole.
    Whole numbers, as a GPU adds in any order; few, as threads would race for them."""
    x = numbers(21, 640 * scale(device), device=device)
    x = x if device == "cpu" else x.mul_(8).round_()
    windows = x.unfold(1, 4, 2)
    windows.scatter_add_(0, torch.ones_like(windows, dtype=torch.int64), windows.clone())
    windows.index_add_(0, torch.arange(21, device=device) % 3, windows.clone())
    return [x, x + 1]


PROGRAMS: dict[str, tuple[Program, float]] = {
    # With the limit in MiB (on the CPU), which some operator of it goes beyond.
    "loss_of_words": (loss_of_words, 6.5),
    "pooled": (pooled, 2),
    "joined": (joined, 1.5),
    "attention_weights": (attention_weights, 2.5),
    "spread": (spread, 1.75),
    "normed": (normed, 2.2),
    "in_place": (in_place, 2),
    "other_layouts": (other_layouts, 2.2),
    "looked_up": (looked_up, 1.75),
    "messages": (messages, 0.8),
}
ALL = {name: program for name, (program, _) in PROGRAMS.items()} | {
    "turned": turned,
    "chosen_in_rows": chosen_in_rows,
    "windows_that_overlap": windows_that_overlap,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_under_less_than_an_operator_needs(
    name: str, device: str, one_thread: None
) -> None:
    program, limit = PROGRAMS[name]
    expected = bits(program(device))
    # On a GPU PyTorch's allocator keeps some of the limit, and the arena leaves a little.
    room = int(limit * scale(device) * MIB) + (32 * MIB if device == "cuda" else 0)
    with sliced(device, room):
        before = torch_lms.memory_stats(device)
        found = program(device)
        stats = torch_lms.memory_stats(device)
        assert stats["device.bytes.peak"] <= stats["limit"]
    # Or in rows of what is never there as a whole.
    if stats["slices.by_rows"] == before["slices.by_rows"]:
        assert stats["slices.operators"] > before["slices.operators"]
        assert stats["slices.bytes"] > before["slices.bytes"]
    assert bits(found) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_slices_there_is_the_old_error(name: str, one_thread: None) -> None:
    program, limit = PROGRAMS[name]
    with (
        sliced("cpu", int(limit * MIB), slices="off"),
        pytest.raises(RuntimeError, match="out of memory"),
    ):
        program("cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("stress", [False, True, "drop"])
def test_always_in_slices(name: str, device: str, stress: bool | str) -> None:
    program = ALL[name]
    expected = bits(program(device))
    limit = (2048 if device == "cuda" else 512) * MIB
    with sliced(device, limit, slices="always", min_block=1, stress=stress, recompute=True):
        before = torch_lms.memory_stats(device)["slices.operators"]
        found = program(device)
        assert torch_lms.memory_stats(device)["slices.operators"] > before
    assert bits(found) == expected


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ALL)
def test_several_threads_compute(name: str, threads: int) -> None:
    """Each thread's share of the whole ends where it did, or the whole is not cut."""
    program = ALL[name]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        expected = bits(program("cpu"))
        with sliced("cpu", 512 * MIB, slices="always", min_block=1):
            found = program("cpu")
        assert bits(found) == expected
    finally:
        torch.set_num_threads(before)


def test_sums_that_must_come_in_order_are_not_cut() -> None:
    """16-bit sums on the CPU: some kernels keep them in 32 bits until the end."""
    nodes = 40
    x = numbers(3001, 64, device="cpu", dtype=torch.bfloat16)
    index = torch.arange(3001) * 7919 % nodes

    def add() -> list[Tensor]:
        sums = torch.zeros(nodes, 64, dtype=torch.bfloat16)
        return [
            sums.scatter_add(0, index.unsqueeze(-1).expand_as(x), x),
            sums.index_add_(0, index, x),
        ]

    expected = bits(add())
    with sliced("cpu", 64 * MIB, slices="always", min_block=1):
        assert bits(add()) == expected


@pytest.mark.gpu
def test_deterministic_sums_are_not_cut() -> None:
    x = numbers(300_001, 64, device="cuda")
    index = torch.arange(300_001, device="cuda") * 7919 % 301

    def add() -> list[Tensor]:
        wide = index.unsqueeze(-1).expand_as(x)
        return [
            torch.zeros(301, 64, device="cuda").index_add_(0, index, x),
            torch.zeros(301, 64, device="cuda").scatter_add_(0, wide, x),
        ]

    torch.use_deterministic_algorithms(True)
    try:
        expected = bits(add())
        with sliced("cuda", 2048 * MIB, slices="always", min_block=1):
            assert bits(add()) == expected
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_training_loop_is_planned_nevertheless() -> None:
    def train(steps: int) -> list[Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 3001)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for step in range(steps):
            x = numbers(307, 64, device="cpu", seed=step)
            loss = functional.cross_entropy(model(x), torch.arange(307) * 9 % 3001)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *model.parameters()]

    expected = bits(train(24))
    with sliced("cpu", 10 * MIB, plan="now"):
        before = torch_lms.memory_stats("cpu")["slices.operators"]
        found = train(24)
        stats = torch_lms.memory_stats("cpu")
    assert stats["slices.operators"] > before
    assert stats["plan.steps"] > 0
    assert bits(found) == expected


def test_threads_at_the_same_tensor() -> None:
    x = numbers(700, 1001, device="cpu")
    expected = bits([functional.gelu(x), torch.sigmoid(x)])
    found: dict[int, list[Tensor]] = {}

    def work(number: int) -> None:
        for _ in range(5):
            found[number] = [functional.gelu(y), torch.sigmoid(y)]

    with sliced("cpu", 4 * MIB):
        before = torch_lms.memory_stats("cpu")["slices.operators"]
        y = numbers(700, 1001, device="cpu")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch_lms.memory_stats("cpu")["slices.operators"] > before
    assert {number: bits(made) for number, made in found.items()} == {0: expected, 1: expected}


def test_the_result_can_be_resized_written_and_read_where_it_lies() -> None:
    with sliced("cpu", 2 * MIB):
        x = numbers(391, 1001, device="cpu")
        y = torch.relu(x)
        assert torch.ops.lms.state(y) == "absent"
        array = y.numpy()
        assert torch.ops.lms.state(y) == "kept"
        assert (array >= 0).all()
        del array, y
        z = torch.relu(x)
        z.resize_(10, 10)
        assert z.shape == (10, 10)


def test_errors_of_an_operator_are_its_own() -> None:
    with sliced("cpu", 2 * MIB, slices="always", min_block=1):
        with pytest.raises(RuntimeError, match="must match"):
            torch.ones(3, 4) + torch.ones(4, 5)
        with pytest.raises(IndexError):
            functional.embedding(torch.tensor([7]), torch.ones(3, 4))


def test_the_limit_that_is_named_works_and_one_page_more() -> None:
    """Even parts find no room beside what is kept."""
    expected = bits([torch.relu(numbers(512, 1024, device="cpu"))])
    for more in (0, 4096):
        with sliced("cpu", 4 * MIB, min_block=4096, slices="parts"):
            x = numbers(512, 1024, device="cpu")
            kept = [torch.zeros(1020 * 1024 // 4) for _ in range(4)]
            arrays = [tensor.numpy() for tensor in kept]
            with pytest.raises(torch.OutOfMemoryError, match="relu") as refused:
                torch.relu(x)
            found = re.search(r"could work here is [^(]*\((\d+) bytes\)", str(refused.value))
            assert found is not None
            named = int(found.group(1))
            assert named > torch_lms.memory_stats("cpu")["limit"]
            settings = {"min_block": 4096, "plan_cache": "off", "slices": "parts"}
            torch_lms.enable(limit=named + more, device="cpu", **settings)
            y = torch.relu(x)
            del kept, arrays, x
        assert bits([y]) == expected


def test_off_is_off() -> None:
    with sliced("cpu", 8 * MIB, slices="off"):
        before = torch_lms.memory_stats("cpu")["slices.operators"]
        torch.relu(numbers(391, 1001, device="cpu"))
        assert torch_lms.memory_stats("cpu")["slices.operators"] == before
    with pytest.raises(ValueError, match="auto, off, parts, all, always, in_place"):
        torch_lms.enable(device="cpu", slices="sometimes")
