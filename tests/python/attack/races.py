"""Lines whose outcome on a GPU is nobody's to say: they read, in other places, what they write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

_IN_PLACE = re.compile(r"(?P<target>\w+)(?P<view>\S*)\.\w+_\((?P<operands>.*)\)")
_OUT = re.compile(r"torch\.\w+\((?P<operands>.*), out=(?P<target>\w+)(?P<view>\S*)\)")
_TURNED = re.compile(r"\.(mT|t\(\)|T\b|imag|real)")


def races(code: str, names: Mapping[str, Any]) -> bool:
    """Whether the threads of a kernel would write what others of them read. PyTorch refuses that
    only where both are dense."""
    found = _IN_PLACE.fullmatch(code) or _OUT.fullmatch(code)
    if found is None:
        return False
    operands = found["operands"]
    if operands.endswith(".clone()") or operands.endswith(".contiguous()"):
        return False
    target = names.get(found["target"])
    for name in re.findall(r"\b[a-z]\d+\b", operands):
        value = names.get(name)
        if not _share(target, value):
            continue
        alike = _turns(found["view"]) == _turns(operands) and "[" not in code
        if not alike or not _same_elements(target, value):
            return True
    return False


def _turns(code: str) -> list[str]:
    return _TURNED.findall(code)


def _share(target: Any, value: Any) -> bool:
    both = (target, value)
    if not all(isinstance(x, torch.Tensor) and x.layout == torch.strided for x in both):
        return False
    return bool(target.untyped_storage()._cdata == value.untyped_storage()._cdata)


def _same_elements(target: torch.Tensor, value: torch.Tensor) -> bool:
    places = [(x.dtype, x.shape, x.stride(), x.storage_offset()) for x in (target, value)]
    return places[0] == places[1]
