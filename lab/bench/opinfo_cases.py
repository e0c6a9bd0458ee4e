"""The operators that ``lab/bench/opinfo.py`` runs: which, on what samples, and in which forms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

FOREACH = ("unary", "binary", "pointwise", "reduce", "other")
SECOND_TYPES = ("bfloat16", "complex64", "int64")

# Operators whose result is whatever the memory held before.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
        # Without dropout it returns two state tensors that its kernel never writes.
        "torch.ops.aten._flash_attention_forward",
    }
)


@dataclass(frozen=True)
class Case:
    """One operator in one type."""

    key: str
    info: Any
    dtype: Any
    foreach: bool


def all_cases(device: str) -> list[Case]:
    """Every operator of the lists in the types to be run, in a fixed order."""
    import torch
    from torch.testing._internal import common_methods_invocations as lists

    # The import forbids to set the flags of backends, in all of this process and for good.
    torch.backends.__allow_nonbracketed_mutation_flag = True

    found: list[Case] = []
    tables = [(lists.op_db, False)]
    tables += [(getattr(lists, f"foreach_{kind}_op_db", []), True) for kind in FOREACH]
    for table, foreach in tables:
        for index, info in enumerate(table):
            supported = info.supported_dtypes(device)
            turn = index % len(SECOND_TYPES)
            order = SECOND_TYPES[turn:] + SECOND_TYPES[:turn]
            second = [getattr(torch, name) for name in order if getattr(torch, name) in supported]
            chosen = [torch.float32] if torch.float32 in supported else []
            chosen += second[: 2 - len(chosen)]
            if not chosen:
                chosen = sorted(supported, key=str)[:1]
            for dtype in chosen:
                name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
                key = f"{name}|{str(dtype).removeprefix('torch.')}"
                found.append(Case(key, info, dtype, foreach))
    return found


# Inputs


def copy_tensor(tensor: Any, storages: dict[int, Any]) -> Any:
    """A copy with the same strides, and with the same sharing of storages."""
    import torch

    if tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested:
        # A clone would resolve them: copy what lies below, and put the lazy bit back.
        flat, needs_grad = tensor.detach(), tensor.requires_grad
        if flat.is_conj():
            return copy_tensor(flat.conj(), storages).conj().requires_grad_(needs_grad)
        if flat.is_neg():
            copied = copy_tensor(torch._neg_view(flat), storages)
            return torch._neg_view(copied).requires_grad_(needs_grad)
    strided = tensor.layout == torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not strided or tensor.is_quantized or tensor.is_nested:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    flat = tensor.detach()
    old = flat.untyped_storage()
    if old._cdata not in storages:
        # Through an operator, as data comes into being in training.
        whole = torch.empty(0, dtype=torch.uint8, device=flat.device).set_(old)
        storages[old._cdata] = whole.clone().untyped_storage()
    copied = torch.empty(0, dtype=flat.dtype, device=flat.device)
    copied.set_(storages[old._cdata], flat.storage_offset(), flat.shape, flat.stride())
    return copied.requires_grad_(tensor.requires_grad)


def copy_tree(value: Any, detach: bool = False) -> Any:
    """A deep copy of a nest of tensors; ``detach`` drops ``requires_grad``."""
    import torch
    from torch.utils import _pytree as pytree

    storages: dict[int, Any] = {}

    def copy(item: Any) -> Any:
        if isinstance(item, torch.Generator):
            return item.clone_state()
        if not isinstance(item, torch.Tensor):
            return item
        copied = copy_tensor(item, storages)
        return copied.detach() if detach and copied.requires_grad else copied

    return pytree.tree_map(copy, value)


def tensors_in(value: Any) -> list[Any]:
    """All tensors of a nest."""
    import torch
    from torch.utils import _pytree as pytree

    return [item for item in pytree.tree_leaves(value) if isinstance(item, torch.Tensor)]


# Ways to run a sample. Each returns what must agree.

Way = Callable[[Case, Any], Any]


def run_function(case: Case, sample: Any) -> Any:
    """Forward and, where it has one, backward."""
    import torch

    inputs = copy_tree((sample.input, tuple(sample.args), dict(sample.kwargs)))
    first, args, kwargs = inputs
    torch.manual_seed(0)
    out = case.info.op(first, *args, **kwargs)
    processed = sample.output_process_fn_grad(out)
    heads = [t for t in tensors_in(processed) if t.requires_grad and t.layout == torch.strided]
    leaves = [t for t in tensors_in(inputs) if t.requires_grad]
    gradients: Any = None
    if heads and leaves:
        weights = [torch.full_like(head, 0.5).detach() for head in heads]
        gradients = torch.autograd.grad(heads, leaves, weights, allow_unused=True)
    return {"out": out, "gradients": gradients, "inputs": inputs}


def run_in_place(case: Case, sample: Any) -> Any:
    """The form that writes into its first argument."""
    import torch

    inputs = copy_tree((sample.input, tuple(sample.args), dict(sample.kwargs)), detach=True)
    first, args, kwargs = inputs
    torch.manual_seed(0)
    case.info.inplace_variant(first, *args, **kwargs)
    return {"inputs": inputs}


def run_out(case: Case, sample: Any) -> Any:
    """The form that writes into tensors that exist already."""
    import torch

    inputs = copy_tree((sample.input, tuple(sample.args), dict(sample.kwargs)), detach=True)
    first, args, kwargs = inputs
    torch.manual_seed(0)
    shape = case.info.op(first, *args, **kwargs)
    outs = torch.zeros_like(shape) if isinstance(shape, torch.Tensor) else tuple(
        torch.zeros_like(part) for part in shape
    )  # fmt: skip
    torch.manual_seed(0)
    case.info.op(first, *args, **kwargs, out=outs)
    return {"out": outs, "inputs": inputs}


def ways_of(case: Case) -> Iterator[tuple[str, Way]]:
    """The forms that the operator has."""
    if case.info.op is not None:
        yield "function", run_function
    if case.info.inplace_variant is not None:
        yield "in place", run_in_place
    if case.info.supports_out and not case.foreach and case.info.op is not None:
        yield "out", run_out


def samples_of(case: Case, device: str, count: int) -> list[Any]:
    """The operator's first samples; for autograd where the type has one."""
    import torch

    differentiable = case.dtype.is_floating_point or case.dtype.is_complex
    wants_grad = bool(
        differentiable
        and case.info.supports_autograd
        and case.dtype in case.info.supported_backward_dtypes(torch.device(device).type)
        and not case.foreach
    )
    torch.manual_seed(0)
    made = case.info.sample_inputs(device, case.dtype, requires_grad=wants_grad)
    return list(itertools.islice(made, count))
