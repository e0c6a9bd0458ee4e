"""Traps: views, aliases, resizing, writes after a copy, and kinds of tensor that are not plain.

Each test sends the block away at the moment where the mistake would be made.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from stress import harness
from stress.children import in_child
from stress.probe import DEVICES, block, reference, same, send_away, state

pytestmark = [
    pytest.mark.parametrize("device", DEVICES),
    pytest.mark.filterwarnings("ignore"),
]
SHAPE = (64, 96)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[5:50],
        lambda x: x[:, 3],
        lambda x: x.view(-1),
        lambda x: x.unfold(1, 8, 4),
        lambda x: x.as_strided((20, 20), (90, 1), 7),
        lambda x: x[:1].expand(30, 96),
        lambda x: x.detach(),
        lambda x: x.view(torch.int32),
    ],
    ids=["transpose", "rows", "column", "flat", "unfold", "as_strided", "expand", "alias", "dtype"],
)
def test_views(device: str, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A view follows its storage out and back; reads through either bring back both."""
    with harness.managed(device):
        x, plain = block(*SHAPE, device=device), reference(*SHAPE)
        part = view(x)
        send_away(x)
        assert state(part) == "absent", "the view's storage is the block's"
        assert same(part.clone(), view(plain).clone())
        assert state(x) == "resident"
        send_away(part)
        assert same(x, plain)


def test_write_through_a_view(device: str) -> None:
    """A write through one view shows in the base and in the other views."""
    with harness.managed(device):
        x, plain = block(*SHAPE, device=device), reference(*SHAPE)
        views, plain_views = (x.t(), x[4:9], x.view(-1)), (plain.t(), plain[4:9], plain.view(-1))
        for a, b in zip(views, plain_views, strict=True):
            send_away(x)
            a.mul_(3)
            b.mul_(3)
            send_away(x)
            for c, d in zip((x, *views), (plain, *plain_views), strict=True):
                assert same(c, d)


def test_shared_storage_outlives_its_first_owner(device: str) -> None:
    """Keyed by storage: the first tensor dies while the block is out."""
    with harness.managed(device):
        x, plain = block(*SHAPE, device=device), reference(*SHAPE)
        part = x[10:20]
        send_away(x)
        del x
        assert same(part, plain[10:20])


def test_block_dies_while_out(device: str) -> None:
    """A dead block gives back what it held; a new one at its address is not taken for it."""
    with harness.managed(device) as package:
        keep = block(*SHAPE, device=device)
        before = package.memory_stats(device)["blocks.current"]
        for index in range(50):
            x = block(*SHAPE, device=device, value=index)
            send_away(x)
            del x
        y = block(*SHAPE, device=device, value=77)
        assert same(y, reference(*SHAPE, value=77))
        assert package.memory_stats(device)["blocks.current"] <= before + 2
        assert same(keep, reference(*SHAPE))


def test_resize(device: str) -> None:
    """``resize_`` of an absent block keeps its first bytes."""
    with harness.managed(device):
        x, plain = block(*SHAPE, device=device), reference(*SHAPE)
        send_away(x)
        x.resize_(128, 96)
        assert same(x[:64], plain)
        x[64:] = 1
        send_away(x)
        x.resize_(8, 96)
        assert same(x, plain[:8])
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(4 * 8 * 96)
        x.fill_(2)
        assert same(x, torch.full((8, 96), 2.0))


def test_set(device: str) -> None:
    """``set_`` onto an absent block, and away from one."""
    with harness.managed(device):
        x, y = block(*SHAPE, device=device), block(*SHAPE, device=device, value=5)
        send_away(x)
        send_away(y)
        x.set_(y)
        assert same(x, reference(*SHAPE, value=5))
        z = torch.empty(0, device=device).set_(y.untyped_storage(), 96, (10, 96), (96, 1))
        send_away(y)
        z.add_(1)
        assert same(x[1:11], reference(*SHAPE, value=5)[1:11] + 1)


def test_data_assignment(device: str) -> None:
    """``.data =`` with both sides away."""
    with harness.managed(device):
        weight = torch.nn.Parameter(block(*SHAPE, device=device))
        y = block(*SHAPE, device=device, value=5)
        send_away(weight)
        send_away(y)
        weight.data = y
        assert same(weight, reference(*SHAPE, value=5))
        send_away(y)
        weight.data.mul_(2)
        assert same(y, reference(*SHAPE, value=5) * 2)
        (weight * weight).sum().backward()
        assert same(weight.grad, reference(*SHAPE, value=5) * 2 * 2)


def test_version_counter_is_untouched(device: str) -> None:
    """Moves are not writes: autograd's check still accepts, and still refuses."""
    with harness.managed(device):
        x = block(*SHAPE, device=device).requires_grad_()
        y = x.exp()
        y.detach().sum()  # a block is tracked from its first use as an input
        version = y._version
        send_away(y)
        y.sum().backward(retain_graph=True)
        assert y._version == version
        with torch.no_grad():
            y.add_(1)
        send_away(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda x: x.add_(1),
    "out": lambda x: torch.mul(x, 2, out=x),
    "out through a view": lambda x: torch.neg(x[3:5], out=x[3:5]),
    "view": lambda x: x[7].fill_(3),
    "copy_": lambda x: x.copy_(x.flip(0)),
    "index_put": lambda x: x.__setitem__(torch.tensor([1, 4], device=x.device), 9.0),
    "data": lambda x: x.data.mul_(4),
    "detach": lambda x: x.detach().sub_(1),
    "list": lambda x: torch._foreach_mul_([x[1:], x[0]], 2.0),
    "list out of place, then copied": lambda x: torch._foreach_copy_([x], torch._foreach_neg([x])),
    "masked": lambda x: x.masked_fill_(x > 0, -1),
    "optimizer": lambda x: _step(x),
    "init": lambda x: torch.nn.init.constant_(x, 0.5),
    "set_item": lambda x: x.__setitem__((2, 2), 42.0),
    "storage fill": lambda x: x.untyped_storage().fill_(1),
    "as integers": lambda x: x.view(torch.int32).bitwise_xor_(5),
}


def _step(x: torch.Tensor) -> None:
    weight = torch.nn.Parameter(x)
    weight.data = x
    weight.grad = torch.ones_like(x)
    torch.optim.SGD([weight], lr=0.5, fused=True).step()


@pytest.mark.parametrize("how", WRITES)
def test_in_place_change_after_the_copy(device: str, how: str) -> None:
    """A copy below is valid only until the next write, whichever way that write takes."""
    plain = reference(*SHAPE)
    WRITES[how](plain)
    with harness.managed(device) as package:
        x = block(*SHAPE, device=device)
        send_away(x)
        x.sum()  # back, and clean: the copy below is still valid
        clean = package.memory_stats(device)["evictions.clean"]
        send_away(x)
        assert package.memory_stats(device)["evictions.clean"] == clean + 1
        x.sum()
        WRITES[how](x)
        send_away(x)
        assert same(x, plain), f"the change {how!r} was lost"
        assert package.memory_stats(device)["evictions.clean"] == clean + 1


def test_lazily_conjugated_and_negated(device: str) -> None:
    """The lazy bits live in the tensor and not in the storage."""
    with harness.managed(device):
        x = torch.view_as_complex(block(48, 48, 2, device=device))
        plain = torch.view_as_complex(reference(48, 48, 2))
        send_away(x)
        assert same(x.conj().resolve_conj(), plain.conj().resolve_conj())
        negated = x.conj().imag
        send_away(x)
        assert negated.is_neg()
        assert same(negated.resolve_neg(), plain.conj().imag.resolve_neg())
        negated.fill_(2)
        send_away(x)
        assert same(x.imag, torch.full((48, 48), -2.0))


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse(device: str, layout: str) -> None:
    """Values and indices of sparse tensors, under full stress."""
    dense = reference(*SHAPE).relu()
    expected = torch.mm(dense.to(device).to_sparse(), reference(96, 8).to(device))
    with harness.managed(device, stress=True):
        managed = dense.to(device) * 1
        kept = managed.to_sparse() if layout == "coo" else managed.to_sparse_csr()
        for _ in range(3):
            assert same(kept.to_dense(), dense)
        got = torch.mm(kept, reference(96, 8).to(device))
        assert got.shape == expected.shape
        if layout == "coo":
            # cuSPARSE adds in no fixed order: then there are no bits to agree with.
            if device == "cpu":
                assert same(got, expected)
            assert same(kept.coalesce().values(), dense[dense != 0])


@pytest.mark.cpu_only
def test_quantised(device: str) -> None:
    """A quantised storage gives the right bytes, wherever it is. (PyTorch's CUDA has no per-row
    quantised kernels to compare with.)"""
    plain = torch.quantize_per_tensor(reference(*SHAPE), 0.05, 3, torch.qint8)
    with harness.managed(device, stress=True):
        q = torch.quantize_per_tensor(block(*SHAPE, device=device), 0.05, 3, torch.qint8)
        for _ in range(3):
            assert same(q.int_repr(), plain.int_repr())
            assert same(q[3:7].dequantize(), plain[3:7].dequantize())


def test_distributed_tensor(device: str) -> None:
    """DTensor over a mesh of one: a wrapper whose local part moves."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh(device, (1,))
        plain = reference(64, 64).to(device)
        expected = plain @ plain
        with harness.managed(device, stress=True):
            x = distribute_tensor(block(64, 64, device=device), mesh, [Shard(0)])
            y = x @ x
            assert isinstance(y, DTensor)
            assert same(y.full_tensor(), expected)
            assert same(y.to_local(), expected)
    finally:
        dist.destroy_process_group()


@pytest.mark.cpu_only
def test_memory_of_onednn_outlives_lms(device: str) -> None:
    """oneDNN's tensors are raw allocations, which the allocator in place when they die frees: also
    after LMS is off, and when it is on again.
    """

    def work() -> bool:
        with harness.managed(device):
            one = block(*SHAPE, device=device).to_mkldnn()
            other = one.relu()
        same_bits = same(one.to_dense(), reference(*SHAPE))
        plain = reference(*SHAPE).to_mkldnn()
        del one
        with harness.managed(device):
            del other
            made = reference(*SHAPE).to_mkldnn()
            del plain
        del made
        return same_bits and torch.ones(SHAPE).sum() == 64 * 96

    assert in_child(work) == 0
