"""Code that compares addresses of CUDA tensors, as savers of models do, or gives memory back.

``test_api_access_cuda.py`` runs it on the model of CUDA and, on a machine with one, on a GPU.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

import torch
from test_api_access_uses import SAFETENSORS, TRANSFORMERS, functions

import torch_lms

N, COUNT = 3 << 20, 12  # 12 MiB and more each: PyTorch's allocator takes no more for one


def weights() -> list[torch.Tensor]:
    """Of types and sizes that take turns, so that places serve one after the other."""
    kinds = [torch.float32, torch.int32, torch.float64]
    return [torch.full((N,), i, device="cuda", dtype=kinds[i % 3]).add_(0) for i in range(COUNT)]


def overlap(tensors: list[torch.Tensor], address: Callable[[torch.Tensor], int]) -> bool:
    """Whether two of them would be taken for views of one another."""
    begins = sorted((address(tensor), tensor.nbytes) for tensor in tensors)
    return any(a + size > b for (a, size), (b, _) in itertools.pairwise(begins))


def states(tensors: list[torch.Tensor]) -> list[str]:
    return [torch.ops.lms.state(tensor) for tensor in tensors]


def each_has_its_own(stress: bool | str) -> None:
    safetensors = functions("safetensors.torch", SAFETENSORS)
    transformers = functions("transformers.pytorch_utils", TRANSFORMERS)
    limit = "100MiB"
    with torch_lms.managed(limit=limit, device="cuda", plan="off", stress=stress):
        tensors = weights()
        before = states(tensors)
        assert len({"absent", "dropped"} & set(before)) >= 1, before
        for identify in (safetensors.storage_ptr, transformers.id_tensor_storage):
            first = [identify(tensor) for tensor in tensors]
            assert len(set(first)) == COUNT, "two of them seem to share their memory"
            assert not overlap(tensors, safetensors.storage_ptr)
            assert [identify(tensor[5:]) for tensor in tensors] == first
            assert states(tensors) == before
            for tensor in tensors[::-1]:
                tensor.add_(0)  # they move
            assert [identify(tensor) for tensor in tensors] == first
            before = states(tensors)
        x = tensors[1]
        assert safetensors._end_ptr(x) - safetensors.storage_ptr(x) == x.nbytes
        assert safetensors._end_ptr(x[:7]) - safetensors.storage_ptr(x) == 28
        assert torch_lms.memory_stats("cuda")["kept.bytes.current"] == 0
        file = io.BytesIO()
        torch.save({"weights": tensors, "view": x[3:]}, file)
        assert torch_lms.memory_stats("cuda")["kept.bytes.current"] == 0
        file.seek(0)
        loaded = torch.load(file, map_location="cuda")
        assert "kept" not in states([loaded["view"], *loaded["weights"]])
        file.seek(0)
        loaded = torch.load(file, map_location="cpu")
        assert loaded["view"].data_ptr() == loaded["weights"][1].data_ptr() + 12
        for tensor, again in zip(tensors, loaded["weights"], strict=True):
            assert tensor.dtype == again.dtype and len(again) == N
    assert safetensors.storage_ptr(tensors[0]) == tensors[0].data_ptr()


def shared_memory_is_found() -> None:
    safetensors = functions("safetensors.torch", SAFETENSORS)
    with torch_lms.managed(limit="1GiB", min_block=1, device="cuda", plan="off", stress=True):
        x = torch.ones(N, device="cuda")
        twin = torch.from_dlpack(x)
        assert safetensors.storage_ptr(twin) == safetensors.storage_ptr(x)
        part = torch.empty(0, device="cuda").set_(x.untyped_storage()[:64])
        assert safetensors.storage_ptr(part) == safetensors.storage_ptr(x)
        nothing = torch.empty(0, device="cuda")
        assert safetensors.storage_ptr(nothing) == 0


def memory_is_given_back(stress: bool | str) -> None:
    """Wherever it is, it goes without coming back, and its storage takes other memory later."""
    with torch_lms.managed(
        limit="200MiB", min_block="4KiB", device="cuda", plan="off", stress=stress
    ):
        made = torch.full((1 << 20,), 2.0, device="cuda")
        kinds = {"given": torch.rand(1 << 20, device="cuda"), "computed": torch.sin(made)}
        for tensor in kinds.values():
            storage = tensor.untyped_storage()
            before = torch_lms.memory_stats("cuda")["page_ins"]
            storage.resize_(0)
            assert torch_lms.memory_stats("cuda")["page_ins"] == before
            assert storage.nbytes() == storage.data_ptr() == 0
            storage.resize_(4 << 20)
            assert tensor.fill_(1).sum().item() >= 0


def main() -> None:
    for stress in (False, True, "drop"):
        each_has_its_own(stress)
        memory_is_given_back(stress)
    shared_memory_is_found()


if __name__ == "__main__":
    main()
