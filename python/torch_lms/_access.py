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

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from . import _callers, _extensions, _launch, _library
from ._blocks import (
    DEVICES,
    access,
    access_storage,
    call,
    has_bytes,
    identity,
    is_nowhere,
    is_unmade,
    keep,
    keep_storage,
    make_readable,
    make_storage_readable,
    on_cpu,
    scope,
    share_storage,
)
from ._patches import Patches

_thread = threading.local()
_patches: Patches | None = None


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
            if not _passes(patches) and on_cpu(self):
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
            if not _passes(patches) and isinstance(data, torch.UntypedStorage) and on_cpu(data):
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
                call(_library.ops().make_all_readable.default)
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
            purpose = "compares" if compares else _callers.purpose(on_cpu(self))
            if purpose is None:
                bring(self)
            elif purpose == "reads" or (on_cpu(self) and is_unmade(self)):
                make_readable(self)
            elif (number := identity(self)) is not None:
                return number
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
                if isinstance(value, torch.UntypedStorage) and is_nowhere(value)
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
            if size == 0 and self.nbytes() > 0 and self.device.type in DEVICES:
                call(_library.ops().before_free.default, self)  # reads nothing
                if not is_nowhere(self):
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


def _no_copy(*_: Any, **kwargs: Any) -> bool:
    return kwargs.get("copy") is not True


# Classes of torch._C, and methods that read the memory of what they write.
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
    patches.replace(tensor, "numpy", escapes(keep, on_cpu))
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
    patches.replace(torch._C, "_pickle_save", _reads_all(patches))
    for kind, name in _WRITERS:
        patches.replace(getattr(torch._C, kind, None), name, _reads_all(patches))

    for owner, name in (
        (tensor, "__deepcopy__"),
        (tensor, "__reduce_ex__"),
        (torch, "save"),
        (torch.serialization, "save"),
        (torch.nn.RNNBase, "flatten_parameters"),
    ):
        patches.replace(owner, name, compares)

    _launch.patch(patches, _launch.Access(access, keep, scope, call, _tracing))
    _extensions.patch(patches, has_bytes, _tracing)


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
