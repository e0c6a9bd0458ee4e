"""What programs have left in files of torch.save's and of safetensors, compared bit by bit.

The files may hold objects of packages, of which nothing is imported.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.records import Record

# By safetensors' names of them.
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class _Foreign:
    """Stands for an object of a package's class when a file is read; keeps what it holds."""

    def __new__(cls, *_: Any, **__: Any) -> _Foreign:
        made = super().__new__(cls)
        made.held = {}
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.held["state"] = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.held[key] = value

    def append(self, value: Any) -> None:
        self.held[len(self.held)] = value

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)


class _Pickle:
    """In the place of the module ``pickle``: classes of PyTorch alone are what they are."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.partition(".")[0] in ("torch", "collections", "builtins", "_codecs"):
                return super().find_class(module, name)
            return _Foreign


def _tensors(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value.detach()
        return
    parts = value
    if isinstance(value, _Foreign):
        parts = value.held
    elif isinstance(value, torch.nn.Module):
        parts = value.__dict__
    elif isinstance(value, (list, tuple)):
        parts = dict(enumerate(value))
    if isinstance(parts, dict) and id(value) not in seen:
        seen.add(id(value))
        for key, part in parts.items():
            yield from _tensors(part, f"{path}.{key}", seen)


def _of_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Such a file is the length of a header, the header, and the bytes that it speaks of."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, facts in json.loads(content[8:begin]).items():
        if name != "__metadata__":
            first, last = (begin + at for at in facts["data_offsets"])
            held = torch.frombuffer(bytearray(content[first:last]), dtype=torch.uint8)
            found[name] = held.view(_TYPES[facts["dtype"]]).reshape(facts["shape"])
    return found


def tensors_of(folder: Path, pattern: str, within: str) -> dict[str, torch.Tensor]:
    """The tensors in the one file of a folder that has such a path, by where they are in it."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"{len(found)} files {pattern} were left")
    if found[0].suffix == ".safetensors":
        held = _of_safetensors(found[0])
    else:
        held = torch.load(found[0], map_location="cpu", weights_only=False, pickle_module=_Pickle)
    return {
        path: each
        for path, each in _tensors(held, "", set())
        if f"{path}.".startswith(f"{within}.") or not within
    }


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left, right = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(left, right)


def compare(what: dict[str, tuple[str, str]], one: Path, other: Path) -> Record:
    """By what is compared: how many tensors there are, and how many are equal, bit by bit."""
    found: Record = {}
    for name, (pattern, within) in what.items():
        ours, theirs = (tensors_of(folder, pattern, within) for folder in (one, other))
        if not ours or ours.keys() != theirs.keys():
            raise ValueError(f"{name}: {len(ours)} and {len(theirs)} tensors, or of other names")
        equal = sum(_same(ours[path], theirs[path]) for path in ours)
        found[name] = {"tensors": len(ours), "equal": equal}
    return found


def all_equal(found: Record) -> bool:
    """Whether nothing differs in what compare() has found."""
    return all(each["equal"] == each["tensors"] for each in found.values())
