"""Digests of everything a program holds: two runs agree when all of these do.

Bytes are compared, so NaN equals NaN and -0.0 differs from 0.0; and versions, by which autograd
knows what has been written. Not those of gradients: autograd adds in place to what nobody else
holds, and what waits is held. Nor any where there have been tensors of inference mode (of these
PyTorch makes some results by a copy that counts, and LMS may make them otherwise), or results that
are gradients.

Reading goes through one operator that copies into memory that LMS does not manage, so it needs no
room on the device for a result.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

import torch

Digests = dict[str, str]
#: Lines with these make, or name, tensors whose versions may differ.
UNCOUNTED = re.compile(r"inference_mode|autograd\.grad|= \w+\.grad$", re.MULTILINE)
_SCRATCH_BYTES = 1 << 20


class Reader:
    """Makes digests. To be made while LMS is off, so that its scratch memory stays unmanaged."""

    def __init__(self, bytes_: int = _SCRATCH_BYTES, pinned: bool = False) -> None:
        self._scratch = torch.zeros(bytes_, dtype=torch.uint8, pin_memory=pinned)
        self._bytes = memoryview(self._scratch.numpy())
        self.counts_versions = True  #: those of tensors are compared

    def read(self, names: Mapping[str, Any]) -> Digests:
        """Digests of the values that have content, by name."""
        digests: Digests = {}
        with torch.no_grad():
            for name, value in names.items():
                self._put(digests, name, value)
        return digests

    def _put(self, digests: Digests, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digests[name] = self._tensor(value)
            if value.is_leaf and value.grad is not None:
                digests[f"{name}.grad"] = self._tensor(value.grad, counted=False)
        elif isinstance(value, torch.UntypedStorage):
            alias = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)
            digests[name] = self._tensor(alias)
        elif isinstance(value, torch.nn.Module):
            for kind in (value.named_parameters(), value.named_buffers()):
                for key, tensor in kind:
                    self._put(digests, f"{name}.{key}", tensor)
        elif isinstance(value, torch.optim.Optimizer):
            for key, state in enumerate(value.state.values()):
                self._put(digests, f"{name}[{key}]", dict(state))
        elif isinstance(value, torch.Generator):
            digests[name] = f"{zlib.crc32(bytes(value.get_state().tolist())):08x}"
        elif isinstance(value, dict):
            for key, item in value.items():
                self._put(digests, f"{name}.{key}", item)
        elif isinstance(value, (list, tuple)):
            digests[name] = str(len(value))
            for index, item in enumerate(value):
                if item is not value:
                    self._put(digests, f"{name}[{index}]", item)
        elif hasattr(value, "tobytes"):  # numpy's
            digests[name] = f"{zlib.crc32(value.tobytes()):08x}"
        elif isinstance(value, (bool, int, float, complex, bytes)):
            digests[name] = repr(value)

    def _tensor(self, tensor: torch.Tensor, counted: bool = True) -> str:
        counted = counted and self.counts_versions and not tensor.is_inference()
        version = f" version {tensor._version}" if counted else ""
        tensor = tensor.detach()
        head = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}{version}"
        count = tensor.numel() * tensor.element_size()
        if not has_its_bytes(tensor) or count > len(self._bytes):
            return head
        into = self._scratch[:count].view(tensor.dtype).view(tensor.shape)
        into.copy_(tensor)
        return f"{head} {zlib.crc32(self._bytes[:count]):08x}"


def has_its_bytes(tensor: torch.Tensor) -> bool:
    """Whether the storage is large enough: after ``resize_(0)`` it is not, and reading faults."""
    if tensor.numel() == 0:
        return True
    last = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def differences(expected: Digests, actual: Digests) -> list[str]:
    """What differs, to read; empty when nothing does."""
    names = sorted(expected.keys() | actual.keys())
    return [
        f"{name}: {expected.get(name, 'nothing')}, under LMS {actual.get(name, 'nothing')}"
        for name in names
        if expected.get(name) != actual.get(name)
    ]
