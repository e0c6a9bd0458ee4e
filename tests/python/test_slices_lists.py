"""Updates over lists: a weight that does not fit with its state is updated part by part; and where
no room is found, nothing has been updated, or the error says what has."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_slices import DEVICES, MIB, bits, numbers, sliced
from torch import Tensor

import torch_lms

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {"device": "cpu", "min_block": 4096, "plan_cache": "off"}
OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, maximize=True, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01, foreach=True),
    "foreach-sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    torch_lms.disable()


def drawn(*sizes: int, device: str, dtype: torch.dtype, seed: int) -> Tensor:
    """As ``numbers()``, but nothing larger is made on the way."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(*sizes, device=device, dtype=dtype).normal_(generator=generator)


def weights(device: str, dtype: torch.dtype) -> list[Tensor]:
    """Of which the first is far larger than the others; the second is laid out otherwise."""
    rows = 512 * 1024 if device == "cuda" else 1024
    large = drawn(rows, 128, device=device, dtype=dtype, seed=0)
    other = drawn(1, 64, 16, 16, device=device, dtype=dtype, seed=1)
    other = other.contiguous(memory_format=torch.channels_last)
    return [large, other, drawn(64, device=device, dtype=dtype, seed=2)]


def trained(
    device: str, optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype
) -> list[Tensor]:
    params = [w.requires_grad_() for w in weights(device, dtype)]
    optim = optimizer(params)
    for step in range(3):
        for i, p in enumerate(params):
            p.grad = torch.full_like(p, 0.1 * (i + 1)).mul_(p.detach()).add_(step)
        optim.step()
        optim.zero_grad()
    state = [v for p in params for v in optim.state[p].values() if isinstance(v, Tensor)]
    return [*params, *state]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_weight_larger_than_the_limit(
    device: str, name: str, dtype: torch.dtype, threads: int
) -> None:
    if device == "cuda" and threads == 2:
        pytest.skip("threads of the host compute nothing there")
    if device == "cuda" and name == "adagrad":
        pytest.skip("PyTorch has no such kernel")
    if device == "cpu" and name == "sgd" and dtype == torch.bfloat16:
        pytest.skip("PyTorch's kernel reads momenta of other elements: it is left whole")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = bits(trained(device, OPTIMIZERS[name], dtype))
        large = 128 * 512 * 1024 if device == "cuda" else 128 * 1024
        # The weight, its gradient, or a moment alone, and what parts of all of them take.
        limit = large * dtype.itemsize * 3 // 2 + (64 * MIB if device == "cuda" else 0)
        with sliced(device, limit, min_block=4096):
            count = torch_lms.memory_stats(device)["slices.operators"]
            found = trained(device, OPTIMIZERS[name], dtype)
            assert torch_lms.memory_stats(device)["slices.operators"] > count
    finally:
        torch.set_num_threads(before)
    assert bits(found) == expected


def test_odd_sizes_are_left_whole_where_threads_share_them() -> None:
    """What is left at the end of a thread's share is computed by other code, with other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch_lms.managed(**SMALL, limit=3 * MIB):
            p = numbers(300001, device="cpu").requires_grad_()
            p.grad = numbers(300001, device="cpu", seed=1)
            with pytest.raises(torch.OutOfMemoryError, match="_fused_adam_.*Nothing was lost"):
                torch.optim.Adam([p], fused=True).step()
    finally:
        torch.set_num_threads(before)


def stepped(**settings: Any) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """Four small weights and, last, a large one; under settings in which all of them fit."""
    torch_lms.enable(**SMALL, limit="1GiB", **settings)
    params = [numbers(256, 64, device="cpu", seed=i).requires_grad_() for i in range(4)]
    params.append(numbers(1024, 512, device="cpu", seed=9).requires_grad_())
    for p in params:
        p.grad = p.detach() * 0.5
    optim = torch.optim.Adam(params, fused=True)
    optim.step()
    torch_lms.reclaim_inactive("cpu")
    return params, optim


def test_what_finds_no_room_has_updated_nothing() -> None:
    params, optim = stepped(slices="off", deferred_updates="false")
    moments = [optim.state[p]["exp_avg"] for p in params]
    before = bits([*params, *moments])
    torch_lms.enable(limit=4 * MIB, device="cpu")
    with pytest.raises(torch.OutOfMemoryError, match="_fused_adam_.*Nothing was lost"):
        optim.step()
    torch_lms.enable(limit="1GiB", device="cpu")
    assert bits([*params, *moments]) == before


def test_updates_that_wait_are_done_once() -> None:
    params, optim = stepped(slices="off", deferred_updates="updates")
    torch_lms.enable(limit=4 * MIB, device="cpu")
    optim.step()
    with pytest.raises(torch.OutOfMemoryError, match="_fused_adam_.*Nothing was lost"):
        params[-1].sum()
    torch_lms.enable(limit="1GiB", device="cpu")
    found = bits(params)
    torch_lms.disable()
    again, same = stepped(deferred_updates="false")
    same.step()
    assert found == bits(again)


def test_what_has_been_updated_is_said() -> None:
    """A kernel that finds no room for what it needs meanwhile, though not for the first weight."""

    def kernel(weights: list[Tensor], *_: object, **__: object) -> None:
        if weights[0].numel() < 1024 * 512:
            torch.empty(4 * MIB)
        for weight in weights:
            weight.add_(1)

    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("_fused_adam_", kernel, "CPU")
        params, optim = stepped(slices="off", deferred_updates="false")
        expected = bits([*params[:4], params[4].detach() + 1])
        torch_lms.enable(limit=10 * MIB, device="cpu")
        # Of whatever type: it comes through a kernel of Python.
        with pytest.raises(RuntimeError, match="Some tensors of its lists") as refused:
            optim.step()
        assert "Nothing was lost" not in str(refused.value)
        torch_lms.enable(limit="1GiB", device="cpu")
        assert bits([p.detach() for p in params]) == expected
    finally:
        library._destroy()


def test_what_may_have_been_written_is_said() -> None:
    """`mean` divides what has been added up, by numbers for which there is no room."""
    torch_lms.enable(**SMALL, limit=64 * MIB, slices="off")
    self = numbers(512, 512, device="cpu")
    index = (numbers(512, 512, device="cpu", seed=1).abs() * 100).long()
    source = numbers(512, 512, device="cpu", seed=2)
    gc.collect()
    kept = torch_lms.memory_stats("cpu")["kept.bytes.current"]  # other tests'
    torch_lms.enable(limit=4 * MIB + 300_000 + kept, device="cpu")
    with pytest.raises(torch.OutOfMemoryError, match="scatter_reduce_") as refused:
        self.scatter_reduce_(1, index, source, "mean")
    assert "may have been written in part" in str(refused.value)
    assert "Nothing was lost" not in str(refused.value)


def test_a_weight_that_is_there_twice_is_updated_in_order() -> None:
    """What needs most comes first only where no memory is behind two positions."""

    def twice() -> list[Tensor]:
        weight = numbers(64, 64, device="cpu")
        large = numbers(2048, 64, device="cpu", seed=4)
        # Two positions over one memory, of which the later needs more: all of it, after a part.
        shared = [weight, large[:1024], large]
        grads = [numbers(*p.shape, device="cpu", seed=5 + i) for i, p in enumerate(shared)]
        torch._fused_sgd_(
            shared, grads, [], weight_decay=0.3, momentum=0.0, lr=0.1, dampening=0.0,
            nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
        return [weight, large]

    expected = bits(twice())
    with torch_lms.managed(**SMALL, limit=3 * MIB, deferred_updates="false"):
        before = torch_lms.memory_stats("cpu")["list_splits"]
        found = twice()
        assert torch_lms.memory_stats("cpu")["list_splits"] > before
    assert bits(found) == expected
