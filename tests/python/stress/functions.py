"""Programs: operators and transforms that are unlike the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .networks import mlp
from .registry import Result, data, generator, gradients, labels, program, seed


@program()
def sort_and_search(device: str) -> Result:
    """Sorting, top-k, histograms, and searches: several outputs and scratch memory."""
    seed()
    x = data(64, 96, device=device).requires_grad_()
    values, index = torch.sort(x, dim=1, stable=True)
    top, where = x.topk(7, 0)
    kth, _ = x.kthvalue(5, 1)
    order = x.detach().flatten().argsort(stable=True)
    found = torch.searchsorted(values.detach(), x.detach().contiguous())
    (values * 2 + x.cumsum(1)).sum().backward(retain_graph=True)
    top.square().sum().backward()
    return {
        "values": values,
        "index": index,
        "top": top,
        "where": where,
        "kth": kth,
        "order": order,
        "found": found,
        "grad": x.grad,
        "median": x.median(1),
        "bins": torch.histc(x.detach(), 50),
        "cummax": x.cummax(1),
    }


@program(reads_unheard=True)
def quantiles(device: str) -> Result:
    """A composite function that reads its tensors' memory itself, since PyTorch 2.15."""
    seed()
    x = data(64, 65, device=device)
    return {"quantile": x.quantile(0.3, 1), "nan": x.nanquantile(0.7, 0)}


@program()
def unique_and_masks(device: str) -> Result:
    """Outputs whose sizes depend on the data."""
    seed()
    x = labels(4096, 500, device)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    runs = torch.unique_consecutive(x.view(64, 64), dim=0)
    y = data(64, 64, device=device)
    where = (y > 0.5).nonzero()
    picked = y[y > 0.5]
    return {
        "values": values,
        "inverse": inverse,
        "counts": counts,
        "runs": runs,
        "where": where,
        "picked": picked,
        "bincount": x.bincount(),
        "put": torch.where(y > 0, y, y * 2),
        "repeat": y.repeat_interleave(2, 0),
        "scattered": y.masked_scatter(y > 0, picked.repeat(8)),
    }


@program()
def nms_like(device: str) -> Result:
    """Suppression of overlapping boxes: a loop in Python over values read from the device."""
    seed()
    corner = torch.rand(300, 2, generator=generator()).to(device) * 100
    size = torch.rand(300, 2, generator=generator(7)).to(device) * 40 + 1
    boxes = torch.cat([corner, corner + size], 1)
    scores = torch.rand(300, generator=generator(8)).to(device)
    order = scores.argsort(descending=True, stable=True)
    area = size.prod(1)
    kept: list[int] = []
    while order.numel():
        best = int(order[0])
        kept.append(best)
        rest = order[1:]
        low = torch.maximum(boxes[best, :2], boxes[rest, :2])
        high = torch.minimum(boxes[best, 2:], boxes[rest, 2:])
        overlap = (high - low).clamp_(min=0).prod(1)
        order = rest[overlap / (area[best] + area[rest] - overlap) < 0.3]
    return {"kept": kept, "boxes": boxes[kept], "area": area}


@program()
def einsum_and_products(device: str) -> Result:
    """Contractions of all sorts."""
    seed()
    a, b, c = (data(4, 32, 32, device=device, value=i).requires_grad_() for i in range(3))
    y = torch.einsum("bij,bjk,bkl->bil", a, b, c)
    z = torch.einsum("bij,bij->b", a, c) + torch.tensordot(a, b, ([0, 1], [0, 1])).sum()
    w = torch.baddbmm(y, a, b, beta=0.5) + torch.kron(a[0, :8, :8], b[0, :4, :4])
    (w.square().sum() + z.sum()).backward()
    chain = torch.linalg.multi_dot([a[0], b[0], c[0], a[1]])
    return {"y": y, "z": z, "w": w, "chain": chain, "grads": [a.grad, b.grad, c.grad]}


@program()
def fft(device: str) -> Result:
    """Transforms of real and complex data, forward and backward."""
    seed()
    x = data(8, 64, 64, device=device).requires_grad_()
    spectrum = torch.fft.rfft2(x)
    y = torch.fft.irfft2(spectrum * spectrum.abs())
    z = torch.fft.fftn(torch.complex(x, y)).real
    short = torch.stft(
        x[0].flatten(), 128, 64, window=torch.hann_window(128, device=device), return_complex=True
    )
    (y.square().mean() + z.mean() + short.abs().sum()).backward()
    return {"spectrum": spectrum, "y": y, "z": z, "short": short, "grad": x.grad}


@program()
def linear_algebra(device: str) -> Result:
    """LAPACK's and cuSOLVER's: in-place work, scratch memory, several outputs."""
    seed()
    x = data(48, 48, device=device).requires_grad_()
    spd = x @ x.t() + 48 * torch.eye(48, device=device)
    lower = torch.linalg.cholesky(spd)
    solved = torch.linalg.solve(spd, x)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    q, r = torch.linalg.qr(x)
    sign, log = torch.linalg.slogdet(spd)
    inverse = torch.linalg.inv(spd)
    values = torch.linalg.eigvalsh(spd)
    (
        lower.sum()
        + solved.sum()
        + s.sum()
        + r.diagonal().abs().sum()
        + log
        + inverse.sum()
        + values.sum()
    ).backward()
    factors = torch.linalg.lu_factor(spd.detach())
    least = torch.linalg.lstsq(spd.detach(), x.detach(), driver="gels").solution
    return {
        "lower": lower,
        "solved": solved,
        "usv": (u, s, vh),
        "qr": (q, r),
        "sign": sign,
        "log": log,
        "inverse": inverse,
        "values": values,
        "grad": x.grad,
        "factors": tuple(factors),
        "least": least,
        "exp": torch.linalg.matrix_exp(x.detach() / 48),
    }


@program()
def random_generators(device: str) -> Result:
    """Generator states saved, restored and forked; every kind of random operator."""
    seed()
    own = torch.Generator(device).manual_seed(5)
    kinds = [
        lambda: torch.rand(64, 64, device=device),
        lambda: torch.randn(64, 64, device=device, generator=own),
        lambda: functional.dropout(torch.ones(64, 64, device=device), 0.4),
        lambda: torch.bernoulli(torch.full((64, 64), 0.3, device=device)),
        lambda: torch.multinomial(torch.ones(64, 50, device=device), 20),
        lambda: torch.randperm(4096, device=device),
        lambda: torch.empty(64, 64, device=device).exponential_(generator=own),
        lambda: torch.empty(64, 64, device=device).normal_().log_normal_(),
        lambda: torch.randint(0, 1000, (64, 64), device=device),
        lambda: functional.rrelu(torch.randn(64, 64, device=device), training=True),
        lambda: functional.gumbel_softmax(torch.ones(64, 64, device=device)),
        lambda: torch.poisson(torch.full((64, 64), 4.0, device=device)),
    ]
    first = [kind() for kind in kinds]
    saved, saved_own = torch.get_rng_state(), own.get_state()
    saved_cuda = torch.cuda.get_rng_state() if device.startswith("cuda") else None
    second = [kind() for kind in kinds]
    torch.set_rng_state(saved)
    own.set_state(saved_own)
    if saved_cuda is not None:
        torch.cuda.set_rng_state(saved_cuda)
    third = [kind() for kind in kinds]
    assert all(torch.equal(a, b) for a, b in zip(second, third, strict=True))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        forked = torch.rand(64, 64, device=device)
    return {
        "first": first,
        "second": second,
        "forked": forked,
        "after": torch.rand(64, 64, device=device),
        "state": torch.get_rng_state(),
    }


@program()
def functorch_transforms(device: str) -> Result:
    """``grad``, ``vmap``, ``jacrev``, ``jvp`` and ``functional_call``."""
    seed()
    model = mlp(32, 64, 32).to(device)
    weights = dict(model.named_parameters())
    x = data(16, 32, device=device)

    def loss(w: dict[str, Tensor], sample: Tensor) -> Tensor:
        return (torch.func.functional_call(model, w, (sample,)) - sample).square().mean()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    jacobian = torch.func.jacrev(lambda s: model(s))(x[0])
    out, tangent = torch.func.jvp(lambda s: model(s), (x,), (torch.ones_like(x),))
    hessian = torch.func.hessian(lambda s: model(s).square().sum())(x[1])
    return {"each": each, "jacobian": jacobian, "out": out, "tangent": tangent, "hessian": hessian}


@program()
def forward_mode(device: str) -> Result:
    """Dual numbers."""
    seed()
    x, t = data(64, 64, device=device), data(64, 64, device=device, value=3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        y = (dual @ dual).sigmoid()
        primal, tangent = torch.autograd.forward_ad.unpack_dual(y)
        return {"primal": primal.clone(), "tangent": tangent.clone()}


class Cube(torch.autograd.Function):
    """A custom function that saves an input, an output, and a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = x * x
        out = square * x
        ctx.save_for_backward(x, out)
        ctx.square = square
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, out = ctx.saved_tensors
        return grad * 3 * ctx.square + 0 * out * x


class ScaleInPlace(torch.autograd.Function):
    """A custom function that changes its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@program()
def custom_function(device: str) -> Result:
    """``autograd.Function``, plain and in place."""
    seed()
    x = data(64, 64, device=device).requires_grad_()
    y = ScaleInPlace.apply(Cube.apply(x) + 1)
    y.square().mean().backward()
    return {"y": y, "grad": x.grad}


@torch.library.custom_op("lms_stress::decay_", mutates_args={"state"})
def decay_(state: Tensor, x: Tensor) -> None:
    """Changes ``state`` in place, partly through raw memory on the CPU."""
    state.mul_(0.5)
    if state.device.type == "cpu":
        state.numpy()[0] += 1.0
    else:
        state[0] += 1.0
    state.add_(x)


@torch.library.custom_op("lms_stress::pair", mutates_args=())
def pair(x: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """Takes and returns lists."""
    return [x @ part for part in parts]


@pair.register_fake
def _(x: Tensor, parts: list[Tensor]) -> list[Tensor]:
    return [x.new_empty(x.shape[0], part.shape[1]) for part in parts]


def _pair_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, parts = inputs
    ctx.save_for_backward(x, *parts)


def _pair_backward(ctx: Any, grads: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    x, *parts = ctx.saved_tensors
    grad_x = sum(g @ p.t() for g, p in zip(grads, parts, strict=True))
    return grad_x, [x.t() @ g for g in grads]


pair.register_autograd(_pair_backward, setup_context=_pair_setup)


@program()
def custom_operators(device: str) -> Result:
    """Operators registered after start-up, one that changes its argument, one over lists."""
    seed()
    state = data(64, 64, device=device)
    x = data(64, 64, device=device, value=2).requires_grad_()
    seen = []
    for _ in range(3):
        decay_(state, x.detach())
        seen.append(state @ state)
    parts = [data(64, 32, device=device, value=i).requires_grad_() for i in range(3)]
    outs = pair(x, parts)
    sum(out.square().sum() for out in outs).backward()
    return {
        "state": state,
        "seen": seen,
        "outs": outs,
        "x": x.grad,
        "parts": [p.grad for p in parts],
    }


@program()
def lists_of_tensors(device: str) -> Result:
    """``cat``, ``stack``, ``_foreach_*`` and index lists: operators over lists."""
    seed()
    parts = [data(40, 40, device=device, value=i).requires_grad_() for i in range(6)]
    wide = torch.cat(parts, 1)
    deep = torch.stack(parts)
    with torch.no_grad():
        a = torch._foreach_mul(parts, 2.0)
        torch._foreach_add_(a, parts, alpha=3)
        torch._foreach_addcdiv_(a, parts, torch._foreach_add(parts, 10.0), value=0.5)
        torch._foreach_lerp_(a, [p.detach() for p in parts], 0.25)
        norms = torch._foreach_norm(a)
        torch._foreach_copy_(a[:3], a[3:])
        torch._foreach_sqrt_(torch._foreach_abs(a))
        both = torch._foreach_maximum(a, parts)
        torch._foreach_zero_(a[:1])
        norm = torch.nn.utils.get_total_norm(a)
    block = torch.block_diag(*[p[:8] for p in parts])
    (wide.square().sum() + deep.sum(0).exp().mean() + block.sum()).backward()
    picked = deep.detach()[labels(20, 6, device), labels(20, 40, device, 3)]
    return {
        "wide": wide,
        "deep": deep,
        "a": a,
        "norms": norms,
        "both": both,
        "norm": norm,
        "picked": picked,
        "grads": [p.grad for p in parts],
    }


@program()
def losses_and_resampling(device: str) -> Result:
    """Losses and resampling kernels with odd scratch memory."""
    seed()
    x = data(4, 8, 24, 24, device=device).requires_grad_()
    grid = torch.rand(4, 20, 20, 2, generator=generator()).to(device) * 2 - 1
    sampled = functional.grid_sample(x, grid, align_corners=False)
    pooled, index = functional.max_pool2d(x, 2, return_indices=True)
    unpooled = functional.max_unpool2d(pooled, index, 2)
    up = functional.interpolate(x, scale_factor=2, mode="nearest")
    columns = functional.unfold(x, 3)
    padded = functional.pad(x, (2, 2, 2, 2), mode="reflect")
    logits = x.flatten(2).permute(2, 0, 1).log_softmax(2)
    target = (labels(4 * 10, 7, device) + 1).view(4, 10)
    ctc = functional.ctc_loss(
        logits,
        target,
        torch.full((4,), 576, dtype=torch.long),
        torch.full((4,), 10, dtype=torch.long),
    )
    total = (
        sampled.square().sum() + unpooled.sum() + up.mean() + columns.mean() + padded.mean() + ctc
    )
    total.backward()
    return {
        "sampled": sampled,
        "pooled": pooled,
        "up": up,
        "columns": columns,
        "padded": padded,
        "ctc": ctc,
        "grad": x.grad,
    }


@program()
def torchscript(device: str) -> Result:
    """A traced and a scripted function: their interpreter calls operators too."""
    seed()
    model = mlp().to(device)
    x = data(32, 64, device=device)
    traced = torch.jit.trace(model, x)
    outs = [traced(x) for _ in range(3)]
    outs[-1].square().mean().backward()
    return {"outs": outs, "grads": gradients(model)}
