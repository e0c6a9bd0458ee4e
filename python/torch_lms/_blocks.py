"""Brings the bytes of tensors and storages back, and says where they are, for ``_access.py``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _library

DEVICES = ("cpu", "cuda")  # whose tensors have bytes that LMS may move
_ADDRESS_BITS = 64

def call(op: Any, *args: Any) -> None:
    """Calls an operator of ours below every mode: it is no part of the user's computation."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        op(*args)


def has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes of its own on a real device."""
    if not torch._C._has_storage(tensor):
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(
        tensor
    ):
        return False
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        # A fake tensor claims a real device; its storage does not.
        return tensor.untyped_storage().device.type in DEVICES


def access(tensor: torch.Tensor) -> None:
    """Brings a tensor's block back and keeps it: until this thread's scope ends, else for good."""
    if has_bytes(tensor):
        call(_library.ops().access.default, tensor)


def keep(tensor: torch.Tensor) -> None:
    """Brings a tensor's block back and keeps it for good, also within a scope."""
    if has_bytes(tensor):
        call(_library.ops().keep.default, tensor)


def make_readable(tensor: torch.Tensor) -> None:
    """Lets a CPU tensor be read where it lies, until it is next written."""
    if has_bytes(tensor):
        call(_library.ops().make_readable.default, tensor)


def _bring(storage: torch.UntypedStorage, bring: Callable[[torch.Tensor], None]) -> None:
    if storage.device.type not in DEVICES or storage.nbytes() == 0:
        return
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        alias = torch.empty(0, dtype=torch.uint8, device=storage.device)
        alias.set_(storage)
        bring(alias)


def access_storage(storage: torch.UntypedStorage) -> None:
    """The same for a storage."""
    _bring(storage, _library.ops().access.default)


def keep_storage(storage: torch.UntypedStorage) -> None:
    """The same for a storage."""
    _bring(storage, _library.ops().keep.default)


def make_storage_readable(storage: torch.UntypedStorage) -> None:
    """The same for a storage."""
    _bring(storage, _library.ops().make_readable.default)


def share_storage(storage: torch.UntypedStorage) -> None:
    """The same for a storage that another process is to open, which takes memory of PyTorch's."""
    _bring(storage, _library.ops().make_plain.default)


@contextlib.contextmanager
def scope(holds: bool = False) -> Iterator[list[torch.Tensor]]:
    """An access scope of this thread: what is accessed inside may leave when it ends.

    With ``holds`` that goes for what operators use inside as well, and what of it lives on is kept,
    but for the tensors in the list that the caller gets: these have come in from outside, or leave.
    """
    ops = _library.ops()
    handed: list[torch.Tensor] = []
    call(ops.scope_begin.default, holds)
    try:
        yield handed
    finally:
        call(ops.scope_end.default, handed)


def storage_of(value: Any) -> torch.UntypedStorage | None:
    """The storage of a tensor, or a storage itself; None: it has no bytes on a real device."""
    if isinstance(value, torch.Tensor):
        if not has_bytes(value):
            return None
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            value = value.untyped_storage()
    return value if value.device.type in DEVICES else None


def is_nowhere(storage: torch.UntypedStorage) -> bool:
    """Whether PyTorch would find no memory: that of a dropped tensor on a GPU, or of one that has
    not been made."""
    if storage.device.type == "cpu":
        return is_unmade(storage)  # what was dropped has its address still
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return bool(_library.ops().is_nowhere.default(storage))


def is_unmade(value: Any) -> bool:
    """Whether what makes a tensor's or storage's bytes waits: it has no address yet."""
    storage = storage_of(value)
    if storage is None:
        return False
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return bool(_library.ops().is_unmade.default(storage))


def identity(value: Any) -> int | None:
    """What tells a tensor's or storage's memory on a GPU from others'; None: its address does.

    Addresses do not: what leaves, for the next to come, may leave its address to it. Numbers of two
    storages are further apart than either has bytes, and above all addresses.
    """
    storage = None if on_cpu(value) else storage_of(value)
    if storage is None or (isinstance(value, torch.Tensor) and value.numel() == 0):
        return None
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        if storage.nbytes() == 0 or not _library.ops().may_move.default(storage):
            return None
        begin = int(storage._cdata) << _ADDRESS_BITS
        if not isinstance(value, torch.Tensor):
            return begin
        return begin + value.storage_offset() * value.element_size()


def on_cpu(value: Any, *_: Any, **__: Any) -> bool:
    return bool(value.device.type == "cpu")  # from elsewhere, it is an error or a copy
