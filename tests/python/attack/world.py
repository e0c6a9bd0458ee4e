"""What lines of programs may call: tensors from seeds, raw pointers, storages, networks."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["namespace"]


def fresh(seed: int, *shape: int, dtype: torch.dtype = torch.float32, dev: str = "cpu") -> Tensor:
    """Numbers from a seed, by way of an operator: a block that may leave."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return (torch.rand(shape, generator=generator) > 0.5).to(dev)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-100, 100, shape, generator=generator).to(dtype).to(dev)
    if dtype.is_complex:
        parts = torch.randn(2, *shape, generator=generator)
        return torch.complex(parts[0], parts[1]).to(dev)
    return (torch.randn(shape, generator=generator) * 1).to(dtype).to(dev)


def array(tensor: Tensor) -> Any:
    """numpy's view of a tensor's memory."""
    return tensor.detach().numpy()


def fixed(tensor: Tensor) -> Tensor:
    """An alias whose storage cannot grow from now on: it would lie elsewhere, and addresses that
    somebody has would dangle, in plain PyTorch as well. LMS sees none of it."""
    alias = tensor.detach()
    torch._C.TensorBase.numpy(alias)
    return alias


def exported(tensor: Tensor) -> Tensor:
    """Another tensor over the same memory, by way of DLPack."""
    return torch.from_dlpack(fixed(tensor) if tensor.device.type == "cpu" else tensor.clone())


def part(tensor: Tensor, count: int) -> torch.UntypedStorage:
    """The first bytes of a storage, as a storage."""
    return fixed(tensor).untyped_storage()[0:count]


class Pointer:
    """A tensor's address, taken once and written through later."""

    def __init__(self, tensor: Tensor) -> None:
        self.alive = fixed(tensor)
        self.address = self.alive.data_ptr()
        self.bytes = self.alive.numel() * self.alive.element_size() if tensor.numel() else 0
        if not tensor.is_contiguous():
            raise ValueError("bytes in between are others'")

    def write(self, offset: int, value: int, count: int) -> None:
        """Sets bytes, as a library would that was given the address."""
        offset %= self.bytes
        ctypes.memset(self.address + offset, value, min(count, self.bytes - offset))

    def read(self) -> bytes:
        return ctypes.string_at(self.address, min(self.bytes, 64))


class Parked:
    """A tensor whose storage has been given back, as sharded data parallel does with weights."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.bytes = tensor.untyped_storage().nbytes()
        tensor.untyped_storage().resize_(0)

    def back(self, value: int) -> Tensor:
        """The tensor, with memory and new contents."""
        storage = self.tensor.untyped_storage()
        storage.resize_(self.bytes)
        storage.fill_(value)
        return self.tensor


def regrow(tensor: Tensor, rows: int, value: float) -> None:
    """``resize_`` to another number of rows; what is new has contents."""
    if tensor.is_inference():
        raise ValueError("it would be resized, and what is new could not be written")
    before = tensor.shape[0]
    tensor.resize_(rows, *tensor.shape[1:])
    if rows > before:
        tensor[before:] = value


def foreach(name: str, *arguments: Any) -> None:
    """``torch._foreach_NAME`` in place. A GPU writes all tensors of the lists at once: none of them
    may be another's memory."""
    tensors = [t for value in arguments if isinstance(value, list) for t in value]
    memory = {t.untyped_storage()._cdata for t in tensors}
    if len(memory) < len(tensors) and any(t.is_cuda for t in tensors):
        raise ValueError("the order of the writes is not defined")
    getattr(torch, f"_foreach_{name}")(*arguments)


def cut(tensor: Tensor) -> None:
    """``resize_`` to half of the elements."""
    tensor.resize_(tensor.numel() // 2)


def rebase(tensor: Tensor, other: Tensor) -> None:
    """``set_`` onto another tensor's storage, but for its first element."""
    storage = other.untyped_storage()
    tensor.set_(storage, 1, (storage.nbytes() // tensor.element_size() - 1,), (1,))


def saved(value: Any) -> Any:
    """The value, saved and loaded."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def fit(tensor: Tensor, shape: tuple[int, ...], integers: bool = False) -> Tensor:
    """A tensor of a shape that a network takes, of the first elements of another."""
    count = math.prod(shape)
    flat = tensor.reshape(-1)
    if flat.is_complex():
        flat = flat.real
    if flat.numel() == 0:
        flat = torch.ones(1, device=tensor.device)
    if flat.numel() < count:
        flat = flat.repeat(-(-count // flat.numel()))
    flat = flat[:count].view(shape).float().nan_to_num(0.5, 1.0, -1.0).clamp(-3, 3)
    return (flat * 5).abs().long() if integers else flat


class Block(nn.Module):
    """Attention and a small perceptron, each after a norm, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def net(kind: str, seed: int, dev: str = "cpu", scale: int = 1) -> nn.Module:
    """A network with some KiB of weights; ``takes`` is the shape of its input."""
    torch.manual_seed(seed)
    takes: tuple[int, ...]
    rows = 64 * scale
    if kind == "mlp":
        made: nn.Module = nn.Sequential(
            nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32)
        )
        takes = (rows, 32)
    elif kind == "conv":
        made = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        takes = (2 * scale, 4, 16, 16)
    elif kind == "drop":
        made = nn.Sequential(
            nn.Linear(32, 48), nn.Dropout(0.3), nn.SiLU(), nn.LayerNorm(48), nn.Linear(48, 32)
        )
        takes = (rows, 32)
    elif kind == "embed":
        made = nn.Sequential(nn.Embedding(16, 64), Block(64))
        takes = (4 * scale, 16)
    else:
        made = Block(32)
        takes = (4 * scale, 16, 32)
    made.takes, made.integers = takes, kind == "embed"
    return made.to(dev)


def feed(network: nn.Module, tensor: Tensor) -> Tensor:
    """What a network makes of a tensor."""
    return network(fit(tensor, network.takes, network.integers))


def optimizer(kind: str, network: nn.Module, foreach: bool) -> torch.optim.Optimizer:
    made = getattr(torch.optim, kind)
    more = {"momentum": 0.9} if kind == "SGD" else {}
    return made(network.parameters(), lr=0.01, foreach=foreach, **more)


def train(network: nn.Module, steps: torch.optim.Optimizer, data: Tensor, way: str) -> float:
    """One training step, done in one of the ways in which people do it."""
    x = fit(data, network.takes, network.integers)
    if way != "accumulate":
        steps.zero_grad(set_to_none=way != "zeros")
    if way == "checkpoint":
        y = torch.utils.checkpoint.checkpoint(network, x, use_reentrant=False)
    elif way == "reentrant":
        x = x if network.integers else x.detach().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(network, x, use_reentrant=True)
    elif way == "save_on_cpu":
        with torch.autograd.graph.save_on_cpu():
            y = network(x)
    elif way == "packed":
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1):
            y = network(x)
    elif way == "autocast":
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = network(x)
    elif way == "hooks":
        y = network(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 2)
    else:
        y = network(x)
    loss = y.float().square().mean()
    if way == "double":
        first = torch.autograd.grad(
            loss, list(network.parameters()), create_graph=True, allow_unused=True
        )
        loss = loss + sum(part.square().sum() for part in first if part is not None)
    if not loss.requires_grad:
        return float(loss)
    loss.backward()
    if way == "clip":
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
    steps.step()
    return float(loss.detach())


def record(value: Tensor, stream: torch.cuda.Stream) -> None:
    """``record_stream``: of a lazy conjugate, or negative, it breaks the heap in plain PyTorch."""
    if not value.is_conj() and not value.is_neg():
        value.record_stream(stream)


def on_stream(
    stream: torch.cuda.Stream, function: Callable[[Tensor], Tensor], value: Tensor, recorded: bool
) -> Tensor:
    """The function of a tensor on a side stream; each stream waits for the other.

    So nothing has to be recorded: whoever frees memory has waited for all that read it.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = function(value)
    if recorded:
        record(value, stream)
        record(result, torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(stream)
    return result


def in_order(value: Tensor, name: str, dim: int) -> tuple[Tensor, Tensor]:
    """``sort``, ``max``, ``median``, ... along a dimension. Which of equals a GPU's median is, it
    leaves to chance; here it is the first."""
    values, indices = getattr(value, name)(dim)
    if name == "median" and value.is_cuda:
        indices = (value == values.unsqueeze(dim)).byte().argmax(dim)
    return values, indices


class Ring:
    """A cycle: only the garbage collector frees what it holds."""

    def __init__(self, *held: Any) -> None:
        self.held, self.itself = held, self


_HELPERS: tuple[Any, ...] = (
    fresh,
    array,
    exported,
    part,
    Pointer,
    Parked,
    regrow,
    foreach,
    cut,
    rebase,
    saved,
    pickled,
    fit,
) + (net, feed, optimizer, train, record, on_stream, in_order, Ring)


def namespace(device: str) -> dict[str, Any]:
    """The names that a program begins with."""
    made = {helper.__name__: helper for helper in _HELPERS}
    made |= {"torch": torch, "F": functional, "nn": nn, "numpy": numpy, "copy": copy, "gc": gc}
    return made | {"dev": device}
