"""Programs for the GPU: streams, graphs, Triton; and ``torch.compile``, on the CPU too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .networks import ResNet18, mlp
from .registry import Result, data, labels, program, seed, summary, train

try:
    import triton
    import triton.language as tl
except ImportError:  # A CPU build of PyTorch comes without it.
    triton = None

if triton is not None:

    @triton.jit
    def _axpy_kernel(x, y, out, alpha, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        value = tl.load(x + at, mask=inside) * alpha + tl.load(y + at, mask=inside)
        tl.store(out + at, value, mask=inside)


def axpy(x: Tensor, y: Tensor, out: Tensor, alpha: float) -> None:
    """``out = alpha * x + y`` by a raw Triton kernel, launched outside every operator."""
    count = out.numel()
    _axpy_kernel[(triton.cdiv(count, 1024),)](x, y, out, alpha, count, BLOCK=1024)


@program(devices=["cuda"])
def triton_kernel(device: str) -> Result:
    """Raw pointers of tensors that may be away: read, written, and written in place."""
    seed()
    x, y = data(64, 96, device=device), data(64, 96, device=device, value=1)
    out = torch.zeros_like(x)
    seen = []
    for step in range(4):
        z = x @ x.t()
        axpy(x, y, out, 0.5 + step)
        seen.append(out @ out.t() + z)
        axpy(out, y, x, 0.25)
        y.add_(out)
    return {"x": x, "y": y, "out": out, "seen": seen}


def _compiled(model: torch.nn.Module, x: Tensor, y: Tensor, **options: Any) -> Result:
    torch._dynamo.reset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fast = torch.compile(model, **options)
    losses = train(model, optimizer, lambda _: functional.cross_entropy(fast(x), y), steps=3)
    return summary(model, optimizer, losses=losses)


@program(slow=True)
def compiled_mlp(device: str) -> Result:
    """Inductor's kernels read raw pointers."""
    seed()
    return _compiled(
        mlp(64, 128, 10).to(device), data(32, 64, device=device), labels(32, 10, device)
    )


@program(devices=["cuda"], slow=True)
def compiled_resnet18(device: str) -> Result:
    """Inductor's kernels between cuDNN's."""
    seed()
    return _compiled(
        ResNet18().to(device), data(4, 3, 64, 64, device=device), labels(4, 10, device)
    )


@program(devices=["cuda"], slow=True)
def compiled_mlp_reduce_overhead(device: str) -> Result:
    """Inductor with CUDA graphs of its own."""
    seed()
    model = mlp(64, 128, 10).to(device)
    x, y = data(32, 64, device=device), labels(32, 10, device)
    return _compiled(model, x, y, mode="reduce-overhead")


@program(devices=["cuda"])
def side_streams(device: str) -> Result:
    """Work on several streams, ordered by events as PyTorch asks."""
    seed()
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = data(256, 256, device=device)
    parts, seen = [], []
    for step in range(3):
        parts.clear()
        for index, stream in enumerate(streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                part = (x @ x).mul_(0.01 * (index + 1)) + step
                part.record_stream(torch.cuda.current_stream())
                parts.append(part)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        x = sum(parts).tanh()
        seen.append(x.clone())
    return {"x": x, "seen": seen}


@program(devices=["cuda"])
def backward_on_side_stream(device: str) -> Result:
    """Backward runs each node on the stream of its forward."""
    seed()
    model = mlp(256, 512, 256).to(device)
    x = data(64, 256, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    stream = torch.cuda.Stream()

    def loss_of(step: int) -> Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            hidden = model[1](model[0](x))
        torch.cuda.current_stream().wait_stream(stream)
        return (model[4](model[3](model[2](hidden))) - x).square().mean()

    losses = train(model, optimizer, loss_of)
    return summary(model, optimizer, losses=losses)


@program(devices=["cuda"])
def non_blocking_copies(device: str) -> Result:
    """Pinned batches copied on a stream of their own, one ahead of the computation."""
    seed()
    model = mlp().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [data(32, 64, device="cpu", value=i).pin_memory() for i in range(4)]
    copier = torch.cuda.Stream()
    losses = []
    with torch.cuda.stream(copier):
        following = batches[0].to(device, non_blocking=True)
    for step in range(len(batches)):
        torch.cuda.current_stream().wait_stream(copier)
        x = following
        x.record_stream(torch.cuda.current_stream())
        if step + 1 < len(batches):
            with torch.cuda.stream(copier):
                following = batches[step + 1].to(device, non_blocking=True)
        losses += train(model, optimizer, lambda _, x=x: (model(x) - x).square().mean(), steps=1)
    host = [loss.to("cpu", non_blocking=True) for loss in losses]
    torch.cuda.synchronize()
    return summary(model, optimizer, losses=losses, host=host)


@program(devices=["cuda"], tight=False)
def cuda_graph(device: str) -> Result:
    """A captured step replayed while everything outside the graph comes and goes."""
    seed()
    model = mlp().to(device)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x = torch.zeros(32, 64, device=device)
    other = data(256, 256, device=device)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        static_loss = step()
    losses = []
    for index in range(4):
        other = (other @ other).tanh()
        x.copy_(data(32, 64, device=device, value=index))
        graph.replay()
        losses.append(static_loss.clone())
    return summary(model, optimizer, losses=losses, other=other)


@program(devices=["cuda"])
def cuda_array_interface(device: str) -> Result:
    """Memory handed over by its address."""
    seed()
    x = data(64, 64, device=device)
    y = x @ x

    class Holder:
        __cuda_array_interface__ = y.__cuda_array_interface__

    alias = torch.as_tensor(Holder(), device=device)
    alias.add_(1)
    z = y @ y
    y.mul_(2)
    return {"y": y, "z": z, "alias": alias + 0}


@program(devices=["cuda"])
def cpu_and_gpu_together(device: str) -> Result:
    """Tensors of both kinds in one program, and operators over both."""
    seed()
    host = data(64, 64, device="cpu") * 2
    card = host.to(device)
    for step in range(3):
        card = card @ card * 0.01
        host = host + card.cpu()
        card[step] = host[0].to(device)
        card = card + torch.tensor(2.0)
    picked = card[torch.arange(8)]
    return {"host": host, "card": card, "picked": picked}
