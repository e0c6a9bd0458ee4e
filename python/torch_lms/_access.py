"""Raw access from Python, while managing is on: the bytes come back first.

Two kinds of use are told apart:

- a pointer that *escapes* (``data_ptr()``, ``numpy()``, DLPack, sharing): the block comes back,
  counts as written, and stays until its storage dies (or, inside a scope, until the scope ends);
- a pointer that is *borrowed* for one call (writing a storage to a file, ``Tensor.apply_``, a
  kernel launch): the call runs in an access scope, and the block may leave afterwards.

A third kind looks at pointers only to compare them (pickling, ``deepcopy``): those calls leave
blocks where they are, or saving a model would bring all of it back at once.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _launch, _library
from ._patches import Patches

_thread = threading.local()
_patches: Patches | None = None


def _call(op: Any, *args: Any) -> None:
    """Calls an operator of ours below every mode: it is no part of the user's computation."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        op(*args)


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes of its own on a real device."""
    if not torch._C._has_storage(tensor):
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(
        tensor
    ):
        return False
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        # A fake tensor claims a real device; its storage does not.
        return tensor.untyped_storage().device.type in ("cpu", "cuda")


def access(tensor: torch.Tensor) -> None:
    """Brings a tensor's block back and keeps it: until this thread's scope ends, else for good."""
    if _has_bytes(tensor):
        _call(_library.ops().access.default, tensor)


def _bring(storage: torch.UntypedStorage, bring: Callable[[torch.Tensor], None]) -> None:
    if storage.device.type not in ("cpu", "cuda") or storage.nbytes() == 0:
        return
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        alias = torch.empty(0, dtype=torch.uint8, device=storage.device)
        alias.set_(storage)
        bring(alias)


def access_storage(storage: torch.UntypedStorage) -> None:
    """The same for a storage."""
    _bring(storage, _library.ops().access.default)


def share_storage(storage: torch.UntypedStorage) -> None:
    """The same for a storage that another process is to open, which takes memory of PyTorch's."""
    _bring(storage, _library.ops().make_plain.default)


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """An access scope of this thread: what is accessed inside may leave when it ends."""
    ops = _library.ops()
    _call(ops.scope_begin.default)
    try:
        yield
    finally:
        _call(ops.scope_end.default)


def _readable(storage: Any) -> bool:
    """Whether a storage's bytes can be read where they lie: they are somewhere, if not here."""
    if not isinstance(storage, torch.UntypedStorage) or storage.device.type != "cpu":
        return True
    if storage.nbytes() == 0:
        return True
    states: list[str] = []
    _bring(storage, lambda alias: states.append(_library.ops().state.default(alias)))
    return states != ["dropped"]


def _tracing() -> bool:
    # Dynamo follows calls into wrappers; it shall see the original and nothing else.
    return torch.compiler.is_dynamo_compiling()


def _passes(patches: Patches) -> bool:
    return not patches.active or _tracing()


def _escapes(
    patches: Patches, bring: Callable[[Any], None], needed: Callable[..., bool] | None = None
) -> Callable[[Any], Any]:
    """Makes wrappers for methods whose result lets a pointer out."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _passes(patches) and (needed is None or needed(self, *args, **kwargs)):
                bring(self)
            return original(self, *args, **kwargs)

        return wrapper

    return make


def _borrows(
    patches: Patches, bring: Callable[[Any], None], needed: Callable[..., bool] | None = None
) -> Callable[[Any], Any]:
    """Makes wrappers for methods that are done with the pointer when they return."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _passes(patches) or not (needed is None or needed(self, *args, **kwargs)):
                return original(self, *args, **kwargs)
            with scope():
                bring(self)
                for other in (*args, *kwargs.values()):
                    if isinstance(other, torch.Tensor):
                        access(other)
                return original(self, *args, **kwargs)

        return wrapper

    return make


def _reads_argument(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for writers that read a storage's memory: what has been dropped has none."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any, name: str, data: Any, *args: Any) -> Any:
            if _passes(patches) or _readable(data):
                return original(self, name, data, *args)
            with scope():
                access_storage(data)
                return original(self, name, data, *args)

        return wrapper

    return make


def _compares(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for calls that look at pointers only to compare them."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if _passes(patches):
                return original(*args, **kwargs)
            _thread.comparing = getattr(_thread, "comparing", 0) + 1
            try:
                return original(*args, **kwargs)
            finally:
                _thread.comparing -= 1

        return wrapper

    return make


def _not_comparing(value: Any, *_: Any, **__: Any) -> bool:
    return not getattr(_thread, "comparing", 0) or _is_nowhere(value)


def _is_nowhere(value: Any) -> bool:
    """Whether PyTorch would find no memory: that of a dropped tensor on a GPU."""
    if value.device.type == "cpu":
        return False  # the address is still its own
    states: list[str] = []
    note = _library.ops().state.default
    if isinstance(value, torch.Tensor):
        states.append(note(value))
    else:
        _bring(value, lambda alias: states.append(note(alias)))
    return states == ["dropped"]


def _is_unreadable(tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Whether a tensor of the CPU has been dropped: what reads it where it lies would fault."""
    if tensor.device.type != "cpu" or not _has_bytes(tensor):
        return False
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return bool(_library.ops().state.default(tensor) == "dropped")


def _on_cpu(tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
    return tensor.device.type == "cpu"  # from elsewhere, numpy() is an error or a copy


def _no_copy(*_: Any, **kwargs: Any) -> bool:
    return kwargs.get("copy") is not True


def _grows(storage: Any, size: int, *__: Any) -> bool:
    return size > 0 or _is_nowhere(storage)  # shrinking to nothing reads nothing


def _patch(patches: Patches) -> None:
    escapes = functools.partial(_escapes, patches)
    borrows = functools.partial(_borrows, patches)
    compares = _compares(patches)

    # __array__ ends in numpy(), __cuda_array_interface__ in data_ptr(), share_memory_() in
    # _share_*.
    tensor = torch.Tensor
    patches.replace(tensor, "data_ptr", escapes(access, _not_comparing))
    patches.replace(tensor, "numpy", escapes(access, _on_cpu))
    patches.replace(tensor, "__dlpack__", escapes(access, _no_copy))
    for name in ("apply_", "map_", "map2_"):
        patches.replace(tensor, name, borrows(access))
    patches.replace(tensor, "tolist", borrows(access, _is_unreadable))
    # The C exchange table hands pointers out without passing here; without it, its users fall
    # back to __dlpack__.
    patches.hide(tensor, "__dlpack_c_exchange_api__")
    for module in (torch, torch.utils.dlpack):
        patches.replace(module, "to_dlpack", escapes(access))

    storage = torch.UntypedStorage
    patches.replace(storage, "data_ptr", escapes(access_storage, _not_comparing))
    patches.replace(storage, "_share_cuda_", escapes(share_storage))
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        patches.replace(storage, name, escapes(access_storage))
    for name in ("__getitem__", "__setitem__", "_write_file", "_set_from_file", "_byteswap"):
        patches.replace(storage, name, borrows(access_storage))
    patches.replace(storage, "resize_", borrows(access_storage, _grows))

    patches.replace(torch._C.PyTorchFileWriter, "write_record", _reads_argument(patches))

    for owner, name in (
        (tensor, "__deepcopy__"),
        (tensor, "__reduce_ex__"),
        (torch, "save"),
        (torch.serialization, "save"),
        (torch.nn.RNNBase, "flatten_parameters"),
    ):
        patches.replace(owner, name, compares)

    _launch.patch(patches, _launch.Access(access, scope, _call, _tracing))


def install() -> None:
    """Puts the wrappers in place. Idempotent; callers serialise."""
    global _patches
    if _patches is not None:
        return
    patches = Patches()
    try:
        _patch(patches)
    except BaseException:
        patches.restore()
        raise
    _patches = patches


def remove() -> None:
    """Takes the wrappers out and restores the originals by identity. Idempotent."""
    global _patches
    if _patches is not None:
        _patches.restore()
        _patches = None


def is_installed() -> bool:
    """Whether the wrappers are in place."""
    return _patches is not None
