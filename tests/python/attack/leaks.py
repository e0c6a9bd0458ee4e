"""Memory that plain PyTorch keeps as well: a graph that saves what it is the graph of."""

from __future__ import annotations

import contextlib
import gc
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from .digest import Reader
from .execute import Run
from .program import Action, Program


class _Watched(Run):
    """A plain run that keeps weak references to all storages that its names have had."""

    def __init__(self, program: Program, reader: Reader) -> None:
        super().__init__(program, reader)
        self.storages: list[StorageWeakRef] = []

    def act(self, action: Action) -> None:
        super().act(action)
        for value in self.held().values():
            tensors = value.parameters() if isinstance(value, torch.nn.Module) else [value]
            self.storages += [
                StorageWeakRef(tensor.untyped_storage())
                for tensor in tensors
                if isinstance(tensor, torch.Tensor)
            ]


class _Ended(BaseException):
    """Past every handler of a program's own."""


class _EndsAt(TorchFunctionMode):
    """Ends the program at a call of PyTorch's, as an error of memory would."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.left = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.left == 0:
            raise _Ended
        self.left -= 1
        return func(*args, **(kwargs or {}))


def leaks_plainly(
    program: Program, reader: Reader, ends_at: int | None = None, at_call: int | None = None
) -> bool:
    """Whether plain PyTorch keeps memory as well: a graph that saves what it is the graph of.

    ``ends_at``: after how many backward passes the program ends, at the next, as by an error of
    memory. ``at_call``: likewise, calls of PyTorch's functions.
    """
    run = _Watched(program, reader)
    left = ends_at
    backward = torch.autograd.backward

    def until_the_end(*values: Any, **named: Any) -> None:
        nonlocal left
        if left == 0:
            raise _Ended
        left = None if left is None else left - 1
        backward(*values, **named)

    ends = contextlib.nullcontext() if at_call is None else _EndsAt(at_call)
    with (
        mock.patch.object(torch.autograd, "backward", until_the_end),
        contextlib.suppress(_Ended),
        ends,
    ):
        run.all()
    run.clear()
    if not all(storage.expired() for storage in run.storages):
        gc.collect()
    return not all(storage.expired() for storage in run.storages)


def leaks_as_well(program: Program, reader: Reader, refused: bool) -> bool:
    """Whether plain PyTorch keeps memory; ``refused``: where an error has ended the program."""
    if leaks_plainly(program, reader):
        return True
    return refused and (
        any(leaks_plainly(program, reader, ends_at=at) for at in range(8))
        or any(leaks_plainly(program, reader, at_call=at) for at in range(200))
    )
