"""What PyTorch refuses, or counts, when an operator over lists is called, though it waits.

For ``test_lists_that_wait.py``, as ``lists_that_wait.py``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest
import torch
from lists_that_wait import DEVICE, LAYERS, WIDTH, _managed
from lists_that_wait import _on_device as _on_device

COUNT = 3  # of what is too small to take long


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """More compute parts of these operators otherwise, so that there are none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("slices", ["auto", "always"])
@pytest.mark.parametrize("deferred", ["false", "true", "all", "updates"])
def test_tensors_of_inference_mode_are_refused_as_without(deferred: str, slices: str) -> None:
    lerp, mul = torch._foreach_lerp_, torch._foreach_mul_

    def outcomes() -> list[str]:
        a = torch.ones(WIDTH, WIDTH) * 3
        with torch.inference_mode():
            b = a * 2
        found = []
        for call in (lambda: mul([a, b], 2), lambda: mul([b], 2), lambda: lerp([a], [b], 0.5)):
            try:
                call()
                found.append("done")
            except RuntimeError as error:
                found.append(str(error).partition(".")[0])
        return [*found, str(a.sum().item()), str(b.sum().item())]

    expected = outcomes()
    with _managed(deferred_updates=deferred, slices=slices):
        assert outcomes() == expected


@pytest.mark.parametrize("slices", ["auto", "always"])
@pytest.mark.parametrize("deferred", ["false", "true", "all", "updates"])
def test_versions_count_at_the_call(deferred: str, slices: str) -> None:
    """Or autograd would not notice that it reads what has been written since."""

    def versions() -> list[int]:
        lists = [[torch.ones(WIDTH, WIDTH) * (2 + i) for _ in range(LAYERS)] for i in range(4)]
        a, b, c, d = lists
        with torch.no_grad():
            torch._foreach_mul_(a, 2.0)
            torch._foreach_addcdiv_(a, b, c, 0.5)
            torch._foreach_lerp_(b, c, 0.5)
            torch._foreach_copy_(c, b)
            steps = [torch.ones((), device=DEVICE) for _ in a]
            torch._fused_adamw_(
                a, b, c, d, [], steps, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1,
                eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
        return [each._version for tensors in lists for each in tensors]

    expected = versions()
    with _one_thread(), _managed(deferred_updates=deferred, slices=slices):
        assert versions() == expected


@pytest.mark.parametrize("slices", ["auto", "always"])
@pytest.mark.parametrize("deferred", ["false", "all"])
def test_every_operator_over_lists_counts_versions_as_without(deferred: str, slices: str) -> None:
    """Kernels count them: on CUDA not all (``_foreach_zero_``), unless they take each by itself."""
    kinds = {
        "alone": lambda a, b, c: (a,),
        "number": lambda a, b, c: (a, 0.5),
        "numbers": lambda a, b, c: (a, [0.5] * COUNT),
        "tensor": lambda a, b, c: (a, torch.full((), 0.5)),
        "list": lambda a, b, c: (a, b),
        "list and number": lambda a, b, c: (a, b, 0.5),
        "list and numbers": lambda a, b, c: (a, b, [0.5] * COUNT),
        "two lists": lambda a, b, c: (a, b, c),
        "two lists and number": lambda a, b, c: (a, b, c, 0.5),
        "two lists and numbers": lambda a, b, c: (a, b, c, [0.5] * COUNT),
        "two lists and tensor": lambda a, b, c: (a, b, c, torch.full((COUNT,), 0.5, device="cpu")),
    }
    names = [name for name in dir(torch) if name.startswith("_foreach_") and name.endswith("_")]

    def versions() -> dict[tuple[str, str, str], list[int] | str]:
        found: dict[tuple[str, str, str], list[int] | str] = {}
        for name, kind, order in itertools.product(names, kinds, ["alike", "others turned"]):
            a, b, c = ([torch.ones(24, 24) * 2 for _ in range(COUNT)] for _ in range(3))
            arguments = kinds[kind](a, [x.t() for x in b] if order == "others turned" else b, c)
            try:
                with torch.no_grad():
                    getattr(torch, name)(*arguments)
                found[name, kind, order] = [each._version for each in a]
            except (RuntimeError, TypeError) as error:
                found[name, kind, order] = type(error).__name__
        return found

    expected = versions()
    assert sum(each == [1] * COUNT for each in expected.values()) > 100, expected
    with _one_thread(), _managed(2, deferred_updates=deferred, slices=slices, min_block=1024):
        found = versions()
    assert {call: found[call] for call in found if found[call] != expected[call]} == {}


def test_reading_what_an_update_has_written_is_an_error_in_autograd() -> None:
    with _managed():
        weights = [torch.ones(WIDTH, WIDTH, requires_grad=True) for _ in range(LAYERS)]
        optimizer = torch.optim.SGD(weights, 0.1, foreach=True)
        x = torch.ones(4, WIDTH, requires_grad=True)
        for weight in weights:
            x = torch.relu(x @ weight) * 0.01
        loss = x.sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
