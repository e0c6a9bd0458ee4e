"""Raw access from Python, while managing is on: the bytes come back first.

Four kinds of use are told apart:

- a pointer that *escapes* (``data_ptr()``, ``numpy()``, DLPack, a slice of a storage, sharing): the
  block comes back, counts as written, and stays until its storage dies. ``data_ptr()`` within a
  scope is a borrow;
- a pointer that is *borrowed* for one call (writing a storage to a file, ``Tensor.apply_``, a
  kernel launch): the call runs in an access scope, and the block may leave afterwards;
- bytes of the CPU that are only *read* (``tolist()``, saving): they can be read wherever they are,
  but for what has been dropped;
- pointers that are only *compared* (pickling, ``deepcopy``, finding tensors that share memory):
  those calls leave blocks where they are, or saving a model would bring all of it back at once;
  on a GPU they get numbers that stay, not addresses.

Whose calls of ``data_ptr()`` are known to be of the last two kinds is in ``_callers.py``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _callers, _extensions, _launch, _library
from ._patches import Patches

_DEVICES = ("cpu", "cuda")  # whose tensors have bytes that LMS may move
_ADDRESS_BITS = 64

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
        return tensor.untyped_storage().device.type in _DEVICES


def access(tensor: torch.Tensor) -> None:
    """Brings a tensor's block back and keeps it: until this thread's scope ends, else for good."""
    if _has_bytes(tensor):
        _call(_library.ops().access.default, tensor)


def keep(tensor: torch.Tensor) -> None:
    """Brings a tensor's block back and keeps it for good, also within a scope."""
    if _has_bytes(tensor):
        _call(_library.ops().keep.default, tensor)


def make_readable(tensor: torch.Tensor) -> None:
    """Lets a CPU tensor be read where it lies, until it is next written."""
    if _has_bytes(tensor):
        _call(_library.ops().make_readable.default, tensor)


def _bring(storage: torch.UntypedStorage, bring: Callable[[torch.Tensor], None]) -> None:
    if storage.device.type not in _DEVICES or storage.nbytes() == 0:
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
    _call(ops.scope_begin.default, holds)
    try:
        yield handed
    finally:
        _call(ops.scope_end.default, handed)


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


def _lists(patches: Patches) -> Callable[[Any], Any]:
    """Makes a wrapper for ``tolist()``, which reads CPU bytes where they lie."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def tolist(self: Any) -> Any:
            if not _passes(patches) and _on_cpu(self):
                # It would resolve a lazy view itself, and read a result that nobody has announced.
                self = self.resolve_conj().resolve_neg()
                make_readable(self)
            return original(self)

        return tolist

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


def _uses_storages(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for functions that are done with their storages when they return."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any) -> Any:
            if _passes(patches):
                return original(*args)
            with scope():
                for storage in args:
                    if isinstance(storage, torch.UntypedStorage):
                        access_storage(storage)
                return original(*args)

        return wrapper

    return make


def _reads_argument(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for writers that read a storage's memory: what has been dropped has none."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any, name: str, data: Any, *args: Any) -> Any:
            if not _passes(patches) and isinstance(data, torch.UntypedStorage) and _on_cpu(data):
                make_storage_readable(data)
            return original(self, name, data, *args)

        return wrapper

    return make


def _reads_all(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for writers in C++ that read the memory of a module's or graph's tensors."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not _passes(patches):
                _call(_library.ops().make_all_readable.default)
            return original(*args, **kwargs)

        return wrapper

    return make


def _points(
    patches: Patches, bring: Callable[[Any], None], make_readable: Callable[[Any], None]
) -> Callable[[Any], Any]:
    """Makes wrappers for ``data_ptr()``."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any) -> Any:
            if _passes(patches):
                return original(self)
            compares = getattr(_thread, "comparing", 0)
            purpose = "compares" if compares else _callers.purpose(_on_cpu(self))
            if purpose is None:
                bring(self)
            elif purpose == "reads" or (_on_cpu(self) and _is_unmade(self)):
                make_readable(self)
            elif (identity := _identity(self)) is not None:
                return identity
            return original(self)

        return wrapper

    return make


def _keeps_all(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for methods that give storages other memory, unheard by their blocks."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not _passes(patches):
                for value in (*args, *kwargs.values()):
                    if isinstance(value, torch.UntypedStorage):
                        keep_storage(value)
            return original(*args, **kwargs)

        return wrapper

    return make


def _needs_addresses(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for methods that refuse storages without an address, and then go on by
    operators."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if _passes(patches):
                return original(*args, **kwargs)
            nowhere = [
                value
                for value in (*args, *kwargs.values())
                if isinstance(value, torch.UntypedStorage) and _is_nowhere(value)
            ]
            if not nowhere:
                return original(*args, **kwargs)
            with scope():
                for storage in nowhere:
                    access_storage(storage)
                return original(*args, **kwargs)

        return wrapper

    return make


def _items(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for reading a storage's items: a slice is a storage of the same memory."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any, item: Any) -> Any:
            if _passes(patches):
                return original(self, item)
            if isinstance(item, slice):
                keep_storage(self)
                return original(self, item)
            with scope():
                access_storage(self)
                return original(self, item)

        return wrapper

    return make


def _resizes(patches: Patches) -> Callable[[Any], Any]:
    """Makes wrappers for giving a storage other memory."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any, size: int) -> Any:
            if _passes(patches):
                return original(self, size)
            if size == 0 and self.nbytes() > 0 and self.device.type in _DEVICES:
                _call(_library.ops().before_free.default, self)  # reads nothing
                if not _is_nowhere(self):
                    return original(self, size)
            with scope():
                access_storage(self)
                return original(self, size)

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


def _storage_of(value: Any) -> torch.UntypedStorage | None:
    """The storage of a tensor, or a storage itself; None: it has no bytes on a real device."""
    if isinstance(value, torch.Tensor):
        if not _has_bytes(value):
            return None
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            value = value.untyped_storage()
    return value if value.device.type in _DEVICES else None


def _is_nowhere(storage: torch.UntypedStorage) -> bool:
    """Whether PyTorch would find no memory: that of a dropped tensor on a GPU, or of one that has
    not been made."""
    if storage.device.type == "cpu":
        return _is_unmade(storage)  # what was dropped has its address still
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return bool(_library.ops().is_nowhere.default(storage))


def _is_unmade(value: Any) -> bool:
    """Whether what makes a tensor's or storage's bytes waits: it has no address yet."""
    storage = _storage_of(value)
    if storage is None:
        return False
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return bool(_library.ops().is_unmade.default(storage))


def _identity(value: Any) -> int | None:
    """What tells a tensor's or storage's memory on a GPU from others'; None: its address does.

    Addresses do not: what leaves, for the next to come, may leave its address to it. Numbers of two
    storages are further apart than either has bytes, and above all addresses.
    """
    storage = None if _on_cpu(value) else _storage_of(value)
    if storage is None or (isinstance(value, torch.Tensor) and value.numel() == 0):
        return None
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        if storage.nbytes() == 0 or not _library.ops().may_move.default(storage):
            return None
        begin = int(storage._cdata) << _ADDRESS_BITS
        if not isinstance(value, torch.Tensor):
            return begin
        return begin + value.storage_offset() * value.element_size()


def _on_cpu(value: Any, *_: Any, **__: Any) -> bool:
    return bool(value.device.type == "cpu")  # from elsewhere, it is an error or a copy


def _no_copy(*_: Any, **kwargs: Any) -> bool:
    return kwargs.get("copy") is not True


_WRITERS = (
    ("ScriptModule", "save"),
    ("ScriptModule", "save_to_buffer"),
    ("ScriptModule", "_save_for_mobile"),
    ("ScriptModule", "_save_to_buffer_for_mobile"),
    ("ScriptFunction", "save"),
    ("ScriptFunction", "save_to_buffer"),
    ("ScriptModuleSerializer", "serialize"),
    ("ScriptModuleSerializer", "write_files"),
    ("Graph", "_export_onnx"),
)


def _patch(patches: Patches) -> None:
    escapes = functools.partial(_escapes, patches)
    borrows = functools.partial(_borrows, patches)
    compares = _compares(patches)

    # __array__ ends in numpy(), __cuda_array_interface__ in data_ptr(), share_memory_() in
    # _share_*.
    tensor = torch.Tensor
    for name in ("data_ptr", "const_data_ptr"):  # the second from PyTorch 2.15 on
        patches.replace(tensor, name, _points(patches, access, make_readable))
    patches.replace(tensor, "numpy", escapes(keep, _on_cpu))
    patches.replace(tensor, "__dlpack__", escapes(keep, _no_copy))
    for name in ("apply_", "map_", "map2_"):
        patches.replace(tensor, name, borrows(access))
    patches.replace(tensor, "tolist", _lists(patches))
    # The C exchange table hands pointers out without passing here; without it, its users fall
    # back to __dlpack__.
    patches.hide(tensor, "__dlpack_c_exchange_api__")
    for module, name in (
        (torch, "to_dlpack"),
        (torch.utils.dlpack, "to_dlpack"),
        (torch._C, "_to_dlpack"),
        (torch._C, "_to_dlpack_versioned"),
    ):
        patches.replace(module, name, escapes(keep, _no_copy))

    storage = torch.UntypedStorage
    patches.replace(storage, "data_ptr", _points(patches, access_storage, make_storage_readable))
    patches.replace(storage, "_share_cuda_", escapes(share_storage))
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        patches.replace(storage, name, escapes(keep_storage))
    for name in ("__setitem__", "_write_file", "_set_from_file", "_byteswap"):
        patches.replace(storage, name, borrows(access_storage))
    patches.replace(storage, "__getitem__", _items(patches))
    patches.replace(storage, "resize_", _resizes(patches))
    for name in ("fill_", "copy_"):
        patches.replace(storage, name, _needs_addresses(patches))
    for name in ("_swap_data_ptr_", "_resize_with_addr_"):  # from PyTorch 2.15 on
        patches.replace(storage, name, _keeps_all(patches))

    patches.replace(torch._C, "_gds_register_buffer", escapes(keep_storage))
    for name in ("_gds_load_storage", "_gds_save_storage"):
        patches.replace(torch._C, name, _uses_storages(patches))
    patches.replace(torch._C.PyTorchFileWriter, "write_record", _reads_argument(patches))
    for kind, name in _WRITERS:
        patches.replace(getattr(torch._C, kind, None), name, _reads_all(patches))
    patches.replace(torch._C, "_pickle_save", _reads_all(patches))

    for owner, name in (
        (tensor, "__deepcopy__"),
        (tensor, "__reduce_ex__"),
        (torch, "save"),
        (torch.serialization, "save"),
        (torch.nn.RNNBase, "flatten_parameters"),
    ):
        patches.replace(owner, name, compares)

    _launch.patch(patches, _launch.Access(access, keep, scope, _call, _tracing))
    _extensions.patch(patches, _has_bytes, _tracing)


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
