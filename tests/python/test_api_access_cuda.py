"""Raw access to CUDA tensors from Python gives the right bytes."""

from __future__ import annotations

import copy

import comparing_on_model
import numpy as np
import pytest
import torch
from on_model import run_on_model

import torch_lms

N = 5000


@pytest.mark.gpu
def test_cuda_pointers() -> None:
    with torch_lms.managed(limit="1GiB", min_block=1, device="cuda", stress=True):
        tensor = torch.arange(N, dtype=torch.int32, device="cuda").mul_(2)
        assert torch.ops.lms.state(tensor) == "absent"
        other = torch.as_tensor(_Interface(tensor), device="cuda")
        other[7] = -1
        assert tensor.add_(0).add_(0)[7].item() == -1
        assert torch.ops.lms.state(tensor) == "kept"
        twin = torch.from_dlpack(absent_on("cuda"))
        assert np.array_equal(twin.cpu().numpy(), np.arange(N, dtype=np.int32) * 2)


class _Interface:
    """Lends a tensor through __cuda_array_interface__ alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


def absent_on(device: str) -> torch.Tensor:
    tensor = torch.arange(N, dtype=torch.int32, device=device).mul_(2)
    assert torch.ops.lms.state(tensor) == "absent"
    return tensor


@pytest.mark.gpu
def test_methods_of_storages_that_check_for_an_address() -> None:
    """What has been dropped has none."""
    with torch_lms.managed(limit="1GiB", min_block=1, device="cuda", stress="drop"):

        def made() -> torch.Tensor:
            tensor = torch.arange(N, dtype=torch.int32, device="cuda") * 2
            assert torch.ops.lms.state(tensor) == "dropped"
            return tensor

        filled, source, target, cloned = made(), made(), made(), made()
        expected = made().cpu()
        filled.untyped_storage().fill_(1)
        target.zero_().untyped_storage().copy_(source.untyped_storage())
        copied = copy.deepcopy(cloned.detach())
        clone = made().untyped_storage().clone()
    assert torch.equal(filled.cpu(), torch.full((N,), 0x01010101, dtype=torch.int32))
    assert torch.equal(target.cpu(), expected)
    assert torch.equal(copied.cpu(), expected)
    assert torch.equal(torch.empty(0, dtype=torch.int32, device="cuda").set_(clone).cpu(), expected)


@pytest.mark.slow
def test_comparers_on_the_model() -> None:
    """What leaves may leave its address to the next: two tensors would seem to share memory."""
    run_on_model("comparing_on_model.py")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_comparers() -> None:
    comparing_on_model.main()


@pytest.mark.gpu
def test_cuda_graph_keeps_what_it_uses() -> None:
    with torch_lms.managed(limit="1GiB", min_block=1, device="cuda"):
        source = torch.arange(4096.0, device="cuda").add_(0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            source * 2
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = source * 2
        torch_lms.reclaim_inactive()
        source.copy_(torch.arange(4096.0, device="cuda") + 1)
        torch_lms.reclaim_inactive()
        graph.replay()
        assert torch.equal(result.cpu(), (torch.arange(4096.0) + 1) * 2)
        assert torch.ops.lms.state(source) == "kept"
