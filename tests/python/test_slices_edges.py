"""Operators in slices at the edges: layouts, names, operands that share memory, threads, errors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import torch_lms

MIB = 1 << 20
SETTINGS = {"device": "cpu", "plan_cache": "off"}
ALWAYS = SETTINGS | {"limit": 512 * MIB, "min_block": 1, "slices": "always"}
aten = torch.ops.aten


def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0)).to(dtype)


def sliced(program: Callable[[], Tensor]) -> Tensor:
    """What the program makes where an operator of it ran in slices."""
    with torch_lms.managed(**ALWAYS):
        before = torch_lms.memory_stats("cpu")["slices.operators"]
        found = program()
        assert torch_lms.memory_stats("cpu")["slices.operators"] > before
    return found


def in_time(work: Callable[[], None], threads: int = 1) -> None:
    """Runs ``work`` in threads that must end."""
    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
        assert not thread.is_alive(), "it hangs"


BACKWARD = {
    "threshold": lambda grad, x: aten.threshold_backward(grad, x, 0.1),
    "leaky_relu": lambda grad, x: aten.leaky_relu_backward(grad, x, 0.1, False),
    "sigmoid": aten.sigmoid_backward,
    "hardtanh": lambda grad, x: aten.hardtanh_backward(grad, x, -1.0, 1.0),
    "elu": lambda grad, x: aten.elu_backward(grad, 1.0, 1.0, 1.0, False, x),
    "softplus": lambda grad, x: aten.softplus_backward(grad, x, 1.0, 20.0),
    "gelu": aten.gelu_backward,
    "silu": aten.silu_backward,
}


@pytest.mark.parametrize("channels_last", ["grad", "x"])
@pytest.mark.parametrize("name", BACKWARD)
def test_operands_of_two_layouts(name: str, channels_last: str) -> None:
    """The operand that says how the result lies is the kernel's to choose."""

    def program() -> Tensor:
        operands = {"grad": numbers(4, 24, 33, 31), "x": numbers(4, 24, 33, 31) * 1.5}
        operands[channels_last] = operands[channels_last].to(memory_format=torch.channels_last)
        return BACKWARD[name](operands["grad"], operands["x"])

    expected = program()
    with torch_lms.managed(**ALWAYS):
        found = program()
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)


def test_a_comparison_with_a_number_lies_as_it_does() -> None:
    x = numbers(1, 20, 1, 4).as_strided((1, 20, 1, 4), (1, 1, 80, 20))
    expected = x > 0.1
    assert sliced(lambda: x > 0.1).stride() == expected.stride()


@pytest.mark.parametrize("size", [31243, 45321])
def test_a_gradient_of_one_number(size: int, one_thread: None) -> None:
    """As of ``sum()``: the ends of parts are computed by the code that computes the whole's."""

    def program() -> Tensor:
        one = numbers(1, dtype=torch.float64).expand(size)
        return aten.mish_backward(one, numbers(size, dtype=torch.float64) * 3)

    assert torch.equal(sliced(program), program())


@pytest.mark.skipif(not hasattr(torch.Tensor, "names"), reason="PyTorch 2.15 has no names")
def test_names_stay() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.ones(300, 40, names=("rows", "columns"))
        with torch_lms.managed(**ALWAYS):
            for made in (x * 2, x.relu(), x.clone(), x.double(), torch.cat([x, x]), x.mul_(3)):
                assert made.names == ("rows", "columns")
            with pytest.raises(RuntimeError, match="'columns'"):
                x + torch.ones(300, 40, names=("rows", "others"))


def looked_up_in_itself() -> Tensor:
    table = torch.arange(3000).view(1000, 3) * 7 % 1000
    return functional.embedding(table.view(-1), table)


def chosen_from_its_own_row() -> Tensor:
    x = numbers(100, 100)
    return torch.where(x > 0, x, x.view(torch.int32)[0])


def without_its_own_row() -> Tensor:
    x = numbers(100, 100)
    return x - x[0]


@pytest.mark.parametrize(
    "program", [looked_up_in_itself, chosen_from_its_own_row, without_its_own_row]
)
def test_an_operand_that_is_cut_is_another_that_is_not(program: Callable[[], Tensor]) -> None:
    expected = program()
    with torch_lms.managed(**ALWAYS):
        found: list[Tensor] = []
        in_time(lambda: found.append(program()))
        assert torch.equal(found[0], expected)


def test_threads_that_want_what_others_have_cut() -> None:
    expected = [numbers(200, 300) * torch.arange(300), numbers(200, 300)[torch.arange(300) % 200]]
    wrong: list[int] = []
    with torch_lms.managed(**ALWAYS):
        table, index = numbers(200, 300), torch.arange(300)
        rows = index % 200

        def work() -> None:
            for _ in range(100):
                made = [table * index, functional.embedding(rows, table), index * 1]
                wrong.extend(k for k, same in enumerate(expected) if not torch.equal(made[k], same))

        in_time(work, threads=3)
    assert wrong == []


def test_the_error_of_an_operator_that_has_changed_a_part_in_place() -> None:
    """No room is left after its second part: then the tensor is lost, and the error says so."""
    parts: list[Tensor] = []

    def kernel(part: Tensor) -> Tensor:
        parts.append(part)
        while len(parts) > 1:
            try:
                parts.append(torch.zeros(1024))
            except RuntimeError:
                break
            parts[-1].numpy()  # it stays
        part.numpy()
        return part.fill_(1)

    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("sigmoid_", kernel, "CPU")
        with torch_lms.managed(**SETTINGS, limit=2 * MIB, min_block=4096):
            x = torch.zeros(3 * MIB // 8)
            other = torch.zeros(MIB // 4)
            array = other.numpy()
            with pytest.raises(torch.OutOfMemoryError, match="sigmoid_") as refused:
                x.sigmoid_()
            assert "A part of the tensor" in str(refused.value)
            assert "Nothing was lost" not in str(refused.value)
            del array, other
            parts.clear()
            torch_lms.enable(**SETTINGS, limit=64 * MIB, min_block=4096)
            assert 0 < x.sum() < x.numel()
    finally:
        library._destroy()


def test_lists_among_arguments_are_there_for_the_second_try() -> None:
    """The kernel has taken them out of its arguments when it finds no room."""
    torch_lms.enable(
        device="cpu", limit="30KiB", min_block=1, stress=True, plan="off", recompute=False
    )
    try:
        found = torch.zeros(1).logsumexp(0).item()
    finally:
        torch_lms.disable()
    assert found == 0
