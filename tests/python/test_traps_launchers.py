"""Traps: functions of PyTorch's that hand addresses to kernels of no operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stress.probe import state

import torch_lms

N = 5000
NUMPY = torch.Tensor.numpy  # as it is without LMS
# How they are called: "one" stands for a tensor, "two" for a list of two.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "_cuda_jiterator_compile_and_launch_kernel": ("code", "name", False, 1, "two", {}),
    "_broadcast": ("one", [0]),
    "_broadcast_coalesced": ("two", [0], 1 << 20),
    "_broadcast_out": ("one", "two"),
    "_nccl_all_gather": ("two", "two", None, None),
    "_nccl_all_reduce": ("two", "two", 0, None, None),
    "_nccl_broadcast": ("two", 0, None, None),
    "_nccl_reduce": ("two", "one", 0, 0, None, None),
    "_nccl_reduce_scatter": ("two", "two", 0, None, None),
}


@pytest.mark.parametrize("stress", [True, "drop"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_there(name: str, stress: bool | str, monkeypatch: Any) -> None:
    """A stand-in that writes through pointers, also into what operators within have made."""

    def stand_in(*args: Any) -> torch.Tensor:
        made = torch.arange(N) * 3
        tensors = [t for a in args for t in (a if isinstance(a, list) else [a])]
        tensors = [t for t in tensors if isinstance(t, torch.Tensor)] + [made]
        for tensor in tensors:
            assert state(tensor) in ("resident", "kept")
        for tensor in {id(t): t for t in tensors}.values():
            NUMPY(tensor)[:] += 1
        return made

    monkeypatch.setattr(torch._C, name, stand_in, raising=False)
    away = "dropped" if stress == "drop" else "absent"
    with torch_lms.managed(limit="256MiB", device="cpu", min_block=1, stress=stress):
        one, first, second = (torch.arange(N) * factor for factor in (0, 1, 2))
        sums = [tensor + 0 for tensor in (one, first, second)]
        assert {state(t) for t in (one, first, second, *sums)} == {away}
        stand_for = {"one": one, "two": [first, second]}
        args = [stand_for.get(a, a) if isinstance(a, str) else a for a in FUNCTIONS[name]]
        result = getattr(torch._C, name)(*args)
        written = [one] * ("one" in FUNCTIONS[name]) + [first, second] * ("two" in FUNCTIONS[name])
        for factor, tensor in enumerate((one, first, second)):
            expected = torch.arange(N) * factor
            assert torch.equal(sums[factor], expected)
            assert torch.equal(tensor, expected + any(tensor is other for other in written))
        assert torch.equal(result, torch.arange(N) * 3 + 1)
        kept = name.startswith("_nccl")
        assert all((state(tensor) == "kept") == kept for tensor in written)


@pytest.mark.gpu
@pytest.mark.parametrize("stress", [True, "drop"])
def test_jiterator(stress: bool | str) -> None:
    """Each of the two ways in which it takes and returns values."""
    by_value = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T f(T x, T y, T alpha) { return -x + alpha * y; }", alpha=1.0
    )
    by_reference = torch.cuda.jiterator._create_multi_output_jit_fn(
        "template <typename T> void g(T x, T y, T& a, T& b) { a = x + y; b = x * y; }",
        num_outputs=2,
    )

    def program() -> list[torch.Tensor]:
        x, y = (torch.arange(1 << 16, device="cuda", dtype=torch.float32) * k for k in (2, 3))
        total, product = by_reference(x, y)
        out = by_value(total * 2, product * 2, alpha=3.0)
        return [x, y, total, product, out, by_value(out, x) + 1]

    expected = [tensor.cpu() for tensor in program()]
    with torch_lms.managed(device="cuda", limit="1GiB", min_block=1, stress=stress, verify=True):
        results = program()
        found = [tensor.cpu() for tensor in results]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
