"""Programs about storages: views, exchanges of memory, saving, and kinds of tensor."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .networks import mlp
from .registry import Result, data, labels, optimizer_state, program, seed, summary, train


@program()
def save_load(device: str) -> Result:
    """``torch.save`` in mid-training, and training on from what was loaded."""
    seed()
    model = mlp().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = data(32, 64, device=device)
    first = train(model, optimizer, lambda _: (model(x) - x).square().mean(), steps=2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "x": x}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    again = mlp().to(device)
    again.load_state_dict(loaded["model"])
    other = torch.optim.AdamW(again.parameters())
    other.load_state_dict(loaded["optimizer"])
    z = loaded["x"]
    second = train(again, other, lambda _: (again(z) - z).square().mean(), steps=2)
    return summary(again, other, losses=first + second, before=optimizer_state(optimizer))


@program()
def deep_copy(device: str) -> Result:
    """``deepcopy`` of a model with tied weights and of an optimizer, then both trained."""
    seed()
    model = mlp(64, 64, 64).to(device)
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    x = data(32, 64, device=device)
    train(model, optimizer, lambda _: (model(x) - x).square().mean(), steps=1)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    assert twin[2].weight is twin[0].weight
    a = train(model, optimizer, lambda _: (model(x) - x).square().mean(), steps=2)
    b = train(twin, twin_optimizer, lambda _: (twin(x) - x).square().mean(), steps=1)
    return {
        "model": summary(model, optimizer, losses=a),
        "twin": summary(twin, twin_optimizer, losses=b),
    }


@program()
def pickled(device: str) -> Result:
    """Pickle of tensors that share a storage."""
    seed()
    base = data(64, 64, device=device)
    rows = base[8:16]
    again, again_rows = pickle.loads(pickle.dumps((base * 2, rows)))
    again_rows += again[:8]
    return {"base": base, "rows": rows, "again": again, "again_rows": again_rows}


@program()
def dlpack(device: str) -> Result:
    """Exchange in both directions; what either side writes, the other reads."""
    seed()
    x = data(64, 64, device=device)
    y = x * 2
    alias = torch.from_dlpack(y)
    alias.add_(1)
    z = y @ x
    y.mul_(3)
    capsule = torch.utils.dlpack.to_dlpack(z)
    z_alias = torch.utils.dlpack.from_dlpack(capsule)
    z_alias[0] = 7
    return {"y": y, "alias": alias, "z": z, "z_alias": z_alias, "sum": (z + alias).sum()}


@program(devices=["cpu"])
def numpy_exchange(device: str) -> Result:
    """Arrays over tensors and tensors over arrays, written on both sides, held for long."""
    seed()
    x = data(64, 64, device=device) * 2
    array = x.numpy()
    before = array.copy()
    y = x @ x
    array[3] = 5.0
    z = x + y
    x.mul_(2)
    after = torch.from_numpy(array.copy())
    own = np.arange(4096, dtype=np.float32).reshape(64, 64)
    outside = torch.from_numpy(own)
    outside += z
    own[0] = -1.0
    view = np.asarray(z[::2].t())
    total = float(view.sum(dtype=np.float64))
    return {
        "before": torch.from_numpy(before),
        "after": after,
        "x": x,
        "y": y,
        "z": z,
        "outside": outside,
        "own": torch.from_numpy(own),
        "total": total,
        "list": z[0].tolist(),
        "memory": bytes(memoryview(y.numpy()).cast("B")[:64]).hex(),
    }


@program()
def item_print_and_iterate(device: str) -> Result:
    """Reads of single values by ``item``, ``tolist``, ``repr``, ``bool`` and iteration."""
    seed()
    x = data(64, 64, device=device)
    y = x @ x
    rows = [row.sum() for row in y]
    return {
        "item": y[5, 6].item(),
        "list": y[2].tolist(),
        "repr": repr(y),
        "rows": rows,
        "bool": bool((y > 0).any()),
        "storage": bytes(y.cpu().untyped_storage()[:32]).hex(),
    }


@program()
def views_and_aliases(device: str) -> Result:
    """Views, transposes, expanded and overlapping tensors, and writes through all of them."""
    seed()
    base = data(64, 96, device=device)
    transposed, row, column = base.t(), base[5], base[:, 7]
    strided = base.as_strided((30, 30), (97, 1), 3)
    folded = base.view(8, 8, 96).permute(2, 0, 1)
    y = transposed @ base
    row.add_(1)
    column.mul_(2)
    strided.sub_(0.5)
    folded[0].zero_()
    base.t_()
    chunks = base.chunk(4)
    parts = base.split([10, 50, 36])
    chunks[1].copy_(chunks[0])
    torch.add(parts[0], 1, out=parts[2][:10])
    wide = base[:1].expand(96, 64)
    picked = base.unfold(0, 4, 2).sum(-1)
    alias = base.detach()
    alias[0] = 9
    diagonal = base.diagonal()
    diagonal.fill_(3)
    whole = base.view(torch.int32)
    whole[2].bitwise_xor_(1)
    return {
        "base": base,
        "y": y,
        "row": row,
        "wide": wide + 0,
        "picked": picked,
        "strided": strided,
        "parts": parts,
        "column": column,
    }


@program()
def view_autograd(device: str) -> Result:
    """In-place changes of views that autograd follows."""
    seed()
    x = data(64, 64, device=device).requires_grad_()
    y = x * 2
    left, right = y[:, :32], y[:, 32:]
    left.add_(right)
    y[10:20] += left.detach()[:10].sum()
    z = y.t()[3]
    z.exp_()
    y.square().mean().backward()
    return {"y": y, "grad": x.grad}


@program()
def shared_storages(device: str) -> Result:
    """Several tensors over one storage, with and without its first owner."""
    seed()
    base = data(4096, device=device)
    storage = base.untyped_storage()
    second = torch.empty(0, device=device).set_(storage, 64, (32, 32), (32, 1))
    third = torch.empty(0, device=device, dtype=torch.int32).set_(storage, 0, (64, 64), (64, 1))
    del base
    second.mul_(2)
    product = second @ second
    third[0] += 1
    del storage
    flat = nn.utils.parameters_to_vector(mlp().to(device).parameters())
    return {"second": second, "third": third, "product": product, "flat": flat}


@program()
def resize_set_data(device: str) -> Result:
    """``resize_``, ``set_``, ``.data =`` and storages that grow, shrink and vanish."""
    seed()
    x = data(64, 64, device=device)
    y = x * 3
    y.resize_(96, 64)
    y[64:] = x[:32]
    first = y.sum(0)
    y.resize_(16, 64)
    second = y @ x
    z = torch.zeros(8, 8, device=device)
    z.set_(second)
    z += 1
    weight = nn.Parameter(x.clone())
    weight.data = second * 2
    weight.data.add_(1)
    (weight * x[:16]).sum().backward()
    buffer = x + 1
    kept = buffer.clone()
    size = buffer.untyped_storage().size()
    buffer.untyped_storage().resize_(0)
    buffer.untyped_storage().resize_(size)
    buffer.copy_(kept)
    out = torch.empty(0, device=device)
    torch.mm(x, x, out=out)
    x.data, y.data = out, x.data
    swapped = torch.ones(64, 64, device=device)
    torch.utils.swap_tensors(swapped, out)
    return {
        "first": first,
        "second": second,
        "z": z,
        "weight": weight,
        "grad": weight.grad,
        "buffer": buffer,
        "x": x,
        "y": y,
        "out": out,
        "swapped": swapped,
    }


@program()
def in_place_after_copy(device: str) -> Result:
    """Each way to change a tensor whose copy below is valid."""
    seed()
    x = data(64, 64, device=device)
    seen = []
    index = labels(64, 64, device)

    def see() -> None:
        seen.append(x.sum(1).clone())
        seen.append((x @ x)[0].clone())

    see()
    x.add_(1)
    see()
    torch.mul(x, 2, out=x)
    see()
    x[3:9].neg_()
    see()
    x[index] = 0.25
    see()
    x.data.fill_diagonal_(2)
    see()
    torch._foreach_add_([x, x[0:1]], 0.5)
    see()
    x.index_put_((index, index), x[0].clone(), accumulate=True)
    see()
    x.copy_(x.flip(0))
    see()
    nn.init.xavier_uniform_(x)
    see()
    x.scatter_(0, index[None], 4.0)
    see()
    x.masked_fill_(x > 3, -1)
    see()
    return {"x": x, "seen": seen}


@program()
def complex_tensors(device: str) -> Result:
    """Complex numbers, their real views, and lazily conjugated and negated views."""
    seed()
    x = torch.complex(
        data(48, 48, device=device), data(48, 48, device=device, value=1)
    ).requires_grad_()
    y = x @ x.conj().t()
    pairs = torch.view_as_real(y * 1)
    z = torch.view_as_complex(pairs.clone()).conj()
    imaginary = z.imag
    w = imaginary @ z.real + imaginary
    (w.square().sum() + y.abs().sum()).backward()
    with torch.no_grad():
        kept = z.clone()
        conjugated = kept.conj()
        kept.mul_(2)
        conjugated[0] = 1 + 1j
        negated = conjugated.imag
        copied = negated + 1
    return {
        "y": y,
        "z": z,
        "w": w,
        "grad": x.grad,
        "kept": kept,
        "negated": negated,
        "is_neg": negated.is_neg(),
        "is_conj": conjugated.is_conj(),
        "copied": copied,
    }


@program()
def sparse_tensors(device: str) -> Result:
    """COO and CSR products, coalescing, and gradients through them."""
    seed()
    rows, cols = labels(800, 64, device), labels(800, 64, device, value=5)
    values = data(800, device=device).requires_grad_()
    coo = torch.sparse_coo_tensor(torch.stack([rows, cols]), values, (64, 64)).coalesce()
    x = data(64, 64, device=device).requires_grad_()
    y = torch.sparse.mm(coo, x)
    y.square().sum().backward()
    csr = coo.detach().to_sparse_csr()
    z = csr @ x.detach()
    total = torch.sparse.sum(coo.detach(), 0)
    return {
        "coo": coo,
        "csr": csr,
        "y": y,
        "z": z,
        "total": total,
        "dense": coo.detach().to_dense(),
        "grads": [values.grad, x.grad],
    }


@program(devices=["cpu"])
def quantised_tensors(device: str) -> Result:
    """Quantised storages beside plain ones."""
    seed()
    x = data(64, 64, device=device)
    q = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
    scales, zeros = torch.full((64,), 0.05, dtype=torch.float64), torch.zeros(64, dtype=torch.int64)
    channel = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
    y = q.dequantize() @ channel.dequantize()
    q2 = torch.quantize_per_tensor(y, 0.5, 0, torch.qint8)
    return {"q": q, "channel": channel, "y": y, "q2": q2, "rows": q2[3:5].dequantize()}


@program()
def nested_tensors(device: str) -> Result:
    """Nested tensors, in the strided and in the jagged layout."""
    seed()
    parts = [data(n, 32, device=device, value=n) for n in (40, 17, 55)]
    weight = data(32, 32, device=device).requires_grad_()
    strided = torch.nested.nested_tensor(parts)
    padded = torch.nested.to_padded_tensor(strided.relu() * 2, 0.0)
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    out = torch.nn.functional.linear(jagged, weight).relu() * 2
    out.values().sum().backward()
    return {"padded": padded, "out": out, "weight": weight.grad, "jagged": jagged.grad}


class Doubled(Tensor):
    """A wrapper subclass: it holds half of its value, and unwraps for each operator."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Doubled:
        self = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=held.device, strides=held.stride()
        )
        self.held = held
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Doubled, lambda t: t.held * 2, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return pytree.tree_map_only(Tensor, lambda t: Doubled(t / 2), out)


class Named(Tensor):
    """A plain subclass, through ``__torch_function__`` alone."""


@program()
def tensor_subclass(device: str) -> Result:
    """A wrapper subclass, whose storage is empty, and one with a storage of its own."""
    seed()
    wrapped = Doubled(data(64, 64, device=device))
    y = (wrapped @ wrapped + wrapped).relu()
    named = data(64, 64, device=device).as_subclass(Named)
    z = named @ named
    assert isinstance(y, Doubled) and isinstance(z, Named)
    return {"y": y.held, "z": z.as_subclass(Tensor), "sum": z.sum().as_subclass(Tensor)}


@program()
def channels_last_conversions(device: str) -> Result:
    """Memory formats there and back, and operators over a mixture of them."""
    seed()
    x = data(4, 16, 16, 16, device=device)
    y = x.contiguous(memory_format=torch.channels_last)
    z = x + y
    w = torch.cat([y, z], 1)
    v = w.to(memory_format=torch.contiguous_format).mul_(2)
    u = torch.empty_like(w).copy_(v)
    return {"z": z, "w": w, "v": v, "u": u, "strides": (z.stride(), w.stride(), u.stride())}


@program()
def device_and_dtype_moves(device: str) -> Result:
    """``to`` in all directions, pinned copies among them, and a model that moves and returns."""
    seed()
    model = mlp().to(device)
    x = data(32, 64, device=device)
    y = model(x)
    model.double()
    z = model(x.double())
    model.cpu().float().to(device)
    w = model(x)
    host = w.to("cpu", copy=True)
    if device.startswith("cuda"):
        host = host.pin_memory()
        back = host.to(device, non_blocking=True)
    else:
        back = host.to(device, torch.float16)
    return {
        "y": y,
        "z": z,
        "w": w,
        "host": host,
        "back": back * 2,
        "half": w.bfloat16() @ w.bfloat16().t(),
    }


@program()
def functional_state(device: str) -> Result:
    """``state_dict`` with ``assign``, buffers, parametrisations and weight norm."""
    seed()
    model = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)).to(device)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)).to(device)
    x = data(32, 64, device=device)
    out = []
    for _ in range(3):
        y = spectral(model(x))
        y.square().mean().backward()
        out.append(y.detach())
    other = nn.Linear(64, 64, device="meta")
    other.load_state_dict(
        {"weight": model.weight.detach(), "bias": model.bias.detach()}, assign=True
    )
    return {"out": out, "model": summary(model), "spectral": summary(spectral), "other": other(x)}
