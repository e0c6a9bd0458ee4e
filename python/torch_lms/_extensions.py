"""Functions of C++ extensions that take tensors by pybind11: each call is an operator.

PyTorch does not see them, and they use ``data_ptr()`` in C++: they would read over the bus what is
away, find nothing where a tensor was dropped, and lose what they write to a clean block. So while
LMS is on, a call runs within an operator of ours that takes its tensors, and counts as a writer of
all. What the hook does for operators it does for them: blocks are there and stay meanwhile, streams
are waited for, steps and plans know of it.

An extension is a module in a shared library, not PyTorch's own, that uses PyTorch's conversion of
Python's tensors. Its functions, and the methods of its classes, are replaced as others are
(``_patches.py``), also where a module has them by ``from extension import function``.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from types import FunctionType, ModuleType
from typing import Any

import torch

from . import _elf
from ._launch import nested
from ._patches import Patches

# What a library is linked to, or uses, that takes or returns Python's tensors.
_MARKS = (b"libtorch_python", b"THPVariable", b"type_casterIN2at6Tensor")
_OWN = ("torch", "functorch", "torch_lms")
# Names of types: pybind11's and Cython's cannot be imported.
_FUNCTIONS = ("builtin_function_or_method", "cython_function_or_method")
_METHODS = (*_FUNCTIONS, "instancemethod", "method_descriptor")
_SPECIAL = ("__init__", "__call__", "__getitem__", "__setitem__", "__add__", "__iadd__")
_SPECIAL += ("__sub__", "__isub__", "__mul__", "__imul__", "__matmul__", "__imatmul__")

# Whether a library's module takes tensors: its file is read once.
_known: weakref.WeakKeyDictionary[ModuleType, bool] = weakref.WeakKeyDictionary()

_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class _Thread(threading.local):
    """The call that a thread's next operator of ours is to run."""

    call: Callable[[], list[torch.Tensor]] | None = None


_thread = _Thread()
_library: torch.library.Library | None = None  # it would take the operator with it


def _kernel(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    call, _thread.call = _thread.call, None
    if call is None:
        raise RuntimeError("lms_extension::call is called by LMS alone")
    return call()


@functools.cache
def _operator() -> Any:
    global _library
    _library = torch.library.Library("lms_extension", "DEF")  # noqa: TOR901
    _library.define("call(Tensor(a!)[] tensors) -> Tensor[]")
    for key in ("CPU", "CUDA"):
        _library.impl("call", _kernel, key)
    return torch.ops.lms_extension.call.default


def _holders(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(torch.ops.lms.holders(tensor))


def _keep_what_is_held(tensors: list[torch.Tensor], results: list[torch.Tensor]) -> None:
    """An object of the extension may have kept these, and will use their memory in calls that do
    not have them. (A graph keeps tensors as well: of its nodes the hook takes care.)"""
    with torch._C.DisableTorchFunction():
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *results)):
            return
        returned = {t.untyped_storage()._cdata for t in results}
        for tensor in tensors:
            if tensor.untyped_storage()._cdata not in returned:
                torch.ops.lms.keep(tensor)


def _tell_unseen(begins: bool) -> None:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        torch.ops.lms.unseen_call(begins)


def _unseen(original: Any, args: Any, kwargs: Any) -> Any:
    """A call that takes no tensor: it may be short, or a whole training step of C++'s.

    Its operators run as any others, but what they make is not computed again: it may be written
    unseen.
    """
    _tell_unseen(True)
    try:
        return original(*args, **kwargs)
    finally:
        _tell_unseen(False)


def _as_operator(
    patches: Patches,
    has_bytes: Callable[[torch.Tensor], bool],
    tracing: Callable[[], bool],
    original: Any,
) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not patches.active or tracing():
            return original(*args, **kwargs)
        tensors = list(filter(has_bytes, nested((args, kwargs))))
        if not tensors:
            return _unseen(original, args, kwargs)
        results: list[Any] = []

        def call() -> list[torch.Tensor]:
            results.append(original(*args, **kwargs))
            return list(filter(has_bytes, nested(results)))

        before, _thread.call = _thread.call, call
        held = [_holders(tensor) for tensor in tensors]
        try:
            with torch._C.DisableTorchFunction():
                on_gpu = any(tensor.is_cuda for tensor in tensors)
            _operator().redispatch(_CUDA if on_gpu else _CPU, tensors)
        finally:
            _thread.call = before
        more = [t for t, count in zip(tensors, held, strict=True) if _holders(t) > count]
        if more:
            _keep_what_is_held(more, list(filter(has_bytes, nested(results))))
        return results[0]

    wrapper._lms_extension = True  # type: ignore[attr-defined]
    return wrapper


def _named(method: Any, name: str) -> Any:
    """Calls a method from a frame of its name whose first argument is the object: so pybind11 knows
    that this is no override of a virtual function, which it would call in the function's place."""

    def frame(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    code = frame.__code__.replace(co_name=name)
    named = FunctionType(code, frame.__globals__, name, None, frame.__closure__)
    return functools.update_wrapper(named, method)


def _takes_tensors(module: ModuleType) -> bool:
    file = vars(module).get("__file__")  # a lazy module would load what it stands for
    if not isinstance(file, str) or not file.endswith((*EXTENSION_SUFFIXES, ".so")):
        return False
    if module.__name__.partition(".")[0] in _OWN:
        return False
    known = _known.get(module)
    if known is None:
        names = _elf.names(file)
        known = _known[module] = any(mark in names for mark in _MARKS)
    return known


def _callables(module: ModuleType) -> Iterator[tuple[Any, str]]:
    """A module's functions, its classes' methods, and those of modules within."""
    for name, value in list(vars(module).items()):
        if type(value).__name__ in _FUNCTIONS:
            yield module, name
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for method, kind in list(vars(value).items()):
                inner = kind.__func__ if isinstance(kind, staticmethod) else kind
                special = method.startswith("__") and method not in _SPECIAL
                if type(inner).__name__ in _METHODS and not special:
                    yield value, method
        elif isinstance(value, ModuleType) and value.__name__.startswith(module.__name__ + "."):
            yield from _callables(value)


def _wrap(patches: Patches, make: Callable[[Any], Any], module: ModuleType) -> dict[int, Any]:
    """Replaces what a module has; returns the wrappers of its functions by the originals' ids."""
    made: dict[int, Any] = {}
    for owner, name in _callables(module):

        def wrapped(original: Any, owner: Any = owner, name: str = name) -> Any:
            if isinstance(owner, ModuleType):
                made[id(original)] = make(original)
                return made[id(original)]
            static = isinstance(vars(owner)[name], staticmethod)
            return staticmethod(make(original)) if static else make(_named(original, name))

        try:
            patches.replace(owner, name, wrapped)
        except TypeError:
            pass  # a class that cannot be changed
    return made


def _wrap_names(patches: Patches, made: dict[int, Any]) -> None:
    """Replaces functions where modules have them under names of their own."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            # It may have been taken from the extension while LMS was on before.
            ours = type(value) is FunctionType and hasattr(value, "_lms_extension")
            original = value.__wrapped__ if ours else value
            wrapper = made.get(id(original))
            if wrapper is not None and value is not wrapper and original is wrapper.__wrapped__:
                patches.replace_item(names, name, wrapper)


def patch(
    patches: Patches, has_bytes: Callable[[torch.Tensor], bool], tracing: Callable[[], bool]
) -> None:
    """Wraps the extensions that are loaded, and others as they come."""
    _operator()
    make = functools.partial(_as_operator, patches, has_bytes, tracing)
    made: dict[int, Any] = {}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and _takes_tensors(module):
            made |= _wrap(patches, make, module)
    if made:
        _wrap_names(patches, made)

    def make_exec(original: Any) -> Any:
        @functools.wraps(original)
        def exec_module(self: Any, module: ModuleType) -> None:
            original(self, module)
            if patches.active and _takes_tensors(module):
                _wrap(patches, make, module)

        return exec_module

    patches.replace(ExtensionFileLoader, "exec_module", make_exec)
