"""Reversible replacement of attributes, also in modules that are imported later."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from torch._C._dynamo import eval_frame

_MISSING = object()


def _leave_alone(wrapper: Any) -> None:
    """Dynamo does not compile the wrapper's own frame, after a graph break: there it would find,
    once for all, that it is tracing. It still looks into it from outside."""
    function = getattr(wrapper, "__func__", wrapper)
    if isinstance(function, FunctionType):
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)


class Patches:
    """A set of attribute replacements that is undone as a whole.

    ``active`` is False once ``restore`` has run. A wrapper that somebody else has wrapped in the
    meantime cannot be taken out without losing theirs: it stays, and is expected to look at
    ``active`` and pass straight through. Not thread-safe: callers serialise.
    """

    def __init__(self) -> None:
        self.active = True
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._undo_items: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._finder: _PostImport | None = None

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets ``owner.name`` to ``make(original)``; without such an attribute, does nothing."""
        original = getattr(owner, name, _MISSING)
        if original is _MISSING:
            return
        own = vars(owner).get(name, _MISSING)
        new = make(original)
        _leave_alone(new)
        setattr(owner, name, new)
        self._undo.append((owner, name, new, own))

    def hide(self, owner: Any, name: str) -> None:
        """Removes ``owner.name`` until ``restore``, if ``owner`` itself has it."""
        own = vars(owner).get(name, _MISSING)
        if own is not _MISSING:
            delattr(owner, name)
            self._undo.append((owner, name, _MISSING, own))

    def replace_item(self, mapping: dict[str, Any], name: str, new: Any) -> None:
        """Sets ``mapping[name]`` (a module's globals) until ``restore``."""
        self._undo_items.append((mapping, name, new, mapping[name]))
        mapping[name] = new

    def when_imported(self, callbacks: dict[str, Callable[[ModuleType], None]]) -> None:
        """Calls ``callbacks[name](module)`` now for modules that are loaded, and for the others
        right after their import. May be called once."""
        self._finder = _PostImport(self, dict(callbacks))
        sys.meta_path.insert(0, self._finder)
        for name, callback in callbacks.items():
            module = sys.modules.get(name)
            # A module that is still being imported reports through the finder or not at all.
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                callback(module)

    def restore(self) -> None:
        """Puts everything back as it was, by identity. Idempotent."""
        self.active = False
        if self._finder is not None:
            if self._finder in sys.meta_path:
                sys.meta_path.remove(self._finder)
            self._finder = None
        while self._undo_items:
            mapping, name, new, original = self._undo_items.pop()
            if mapping.get(name) is new:
                mapping[name] = original
        while self._undo:
            owner, name, new, own = self._undo.pop()
            if vars(owner).get(name, _MISSING) is not new:
                continue
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


class _PostImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and hooks onto the end of its execution."""

    def __init__(
        self, patches: Patches, callbacks: dict[str, Callable[[ModuleType], None]]
    ) -> None:
        self._patches = patches
        self._callbacks = callbacks
        self._busy = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        callback = self._callbacks.get(fullname)
        if callback is None or getattr(self._busy, "name", None) == fullname:
            return None
        self._busy.name = fullname
        try:
            for finder in list(sys.meta_path):
                spec = finder.find_spec(fullname, path, target) if finder is not self else None
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._busy.name = None
        if spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self._patches, callback)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, with a callback after execution; it then steps out of the way."""

    def __init__(
        self, inner: Any, patches: Patches, callback: Callable[[ModuleType], None]
    ) -> None:
        self._inner = inner
        self._patches = patches
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        if self._patches.active:
            self._callback(module)
