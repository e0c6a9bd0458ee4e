"""Tables with sparse gradients leave the device: what stays is within the sparse tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_slices import DEVICES, MIB, Bits, bits, numbers, sliced
from torch import Tensor

import torch_lms

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    torch_lms.disable()


def table_bytes(device: str) -> int:
    return 64 * MIB if device == "cuda" else MIB


def tables(device: str) -> list[torch.nn.Embedding]:
    rows = table_bytes(device) // 256
    return [
        torch.nn.Embedding.from_pretrained(
            numbers(rows, 64, device=device, seed=i), freeze=False, sparse=True
        )
        for i in range(6)
    ]


def trained(device: str, name: str) -> list[Tensor]:
    several = tables(device)
    params = [table.weight for table in several]
    optim = (
        torch.optim.SparseAdam(params, lr=0.1)
        if name == "SparseAdam"
        else getattr(torch.optim, name)(params, lr=0.1)
    )
    words = torch.arange(512, device=device).mul_(7) % (table_bytes(device) // 256)
    for _ in range(3):
        for table in several:
            (table(words).square().sum() / 512).backward()
        optim.step()
        optim.zero_grad()
    state = [v for p in params for v in optim.state[p].values() if isinstance(v, Tensor)]
    return [*params, *state]


@pytest.mark.parametrize("name", ["SparseAdam", "SGD", "Adagrad"])
@pytest.mark.parametrize("device", DEVICES)
def test_tables_leave(device: str, name: str) -> None:
    """Six tables with two moments each, in room for less than one table with its moments twice."""
    expected = bits(trained(device, name))
    with sliced(device, 5 * table_bytes(device), min_block=4096):
        found = trained(device, name)
        assert torch_lms.memory_stats(device)["evictions"] > 0
    assert bits(found) == expected


def test_what_a_sparse_tensor_takes_in_stays() -> None:
    """Dense tensors whose memory becomes the values, the indices: who has it, has a pointer."""
    with torch_lms.managed(device="cpu", limit=64 * MIB, min_block=4096, plan_cache="off"):
        values = numbers(512, 64, device="cpu")
        indices = torch.arange(512).view(1, -1).contiguous()
        outer = torch.sparse_coo_tensor(indices, values, (4096, 64), check_invariants=False)
        inner = outer._values()
        torch_lms.reclaim_inactive("cpu")
        assert torch_lms.memory_stats("cpu")["kept.bytes.current"] >= values.nbytes
        inner.mul_(2)
        assert torch.equal(outer.to_dense()[:512], values)
        dense = numbers(4096, 64, device="cpu", seed=1)
        before = torch_lms.memory_stats("cpu")["kept.bytes.current"]
        expected = dense.clone()
        expected[:512] += values
        dense.add_(outer)
        assert torch_lms.memory_stats("cpu")["kept.bytes.current"] == before
        torch_lms.reclaim_inactive("cpu")
        assert torch.equal(dense, expected)


def test_compressed_rows_take_in_what_they_are_made_of() -> None:
    def kept() -> int:
        return torch_lms.memory_stats("cpu")["kept.bytes.current"]

    def product() -> Bits:
        before = kept() if torch_lms.is_enabled("cpu") else 0
        crow = torch.arange(0, 2049 * 8, 8)
        columns = torch.arange(2048 * 8) % 64
        values = numbers(2048 * 8, device="cpu")
        csr = torch.sparse_csr_tensor(crow, columns, values, (2048, 64))
        dense = numbers(64, 512, device="cpu", seed=1)
        if torch_lms.is_enabled("cpu"):
            torch_lms.reclaim_inactive("cpu")
        made = csr @ dense
        if torch_lms.is_enabled("cpu"):
            assert kept() - before == values.nbytes + columns.nbytes
        return bits([made, csr.values(), dense])

    expected = product()
    with torch_lms.managed(device="cpu", limit=64 * MIB, min_block=1 << 16, plan_cache="off"):
        assert product() == expected
