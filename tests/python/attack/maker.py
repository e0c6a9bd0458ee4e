"""Fills the holes of a line with what a program holds (``templates.py`` lists the holes)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_HOLE = re.compile(r"\{([^{}]+)\}")
_LETTERS = {"n": "n", "p": "p", "v": "v", "st": "s", "l": "l", "gen": "e", "cs": "c"}
_LETTERS |= {"net": "m", "opt": "q", "k": "k"}
_SLOTS = {"o": 14, "net": 3, "opt": 3, "cs": 2}
_DTYPES = (
    ["torch.float32"] * 7
    + ["torch.bfloat16"] * 2
    + ["torch.float64", "torch.int64", "torch.int64", "torch.bool", "torch.complex64"]
)
_SHAPES = ["1024", "1500", "32, 64", "64, 64", "16, 32", "128, 64", "8", "3, 700", "40, 40"]
_SHAPES += ["2, 4, 16, 16", "4, 16, 32", "64, 32", "5, 5", "2, 4, 16, 32", "96, 96", "1", "8192"]


class NoFit(Exception):
    """The program holds nothing that fits a hole."""


def _is_float(t: Tensor) -> bool:
    return t.is_floating_point()


def _is_free(t: Tensor) -> bool:
    """It may be written in place: by a GPU, which writes all at once, only what lies apart."""
    return t.is_floating_point() and not t.requires_grad and (t.is_cpu or _lies_apart(t))


def _lies_apart(t: Tensor) -> bool:
    """No two elements have the same place."""
    reach = 0
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _can_grow(t: Tensor) -> bool:
    """Else an operator that fails to resize it leaves it larger than its memory."""
    return t.untyped_storage().resizable()


_FITS: dict[str, Callable[[Tensor], bool]] = {
    "t": lambda t: True,
    "f": _is_float,
    "w": _is_free,
    "W": lambda t: _is_free(t) and t.dim() > 0 and t.shape[0] >= 8,
    "m": lambda t: _is_float(t) and t.dim() == 2,
    "M": lambda t: _is_float(t) and t.dim() == 2 and t.shape[0] >= 8,
    "q": lambda t: _is_float(t) and t.dim() == 4 and min(t.shape) > 1,
    "i": lambda t: t.dtype == torch.int64 and t.numel() > 0,
    "z": lambda t: t.is_complex(),
    "g": lambda t: t.grad_fn is not None,
    # PyTorch's hooks on views that became part of a graph afterwards end the process.
    "own": lambda t: t.grad_fn is not None and not t._is_view(),
    "leaf": lambda t: t.requires_grad and t.is_leaf,
}


class Maker:
    """Makes lines for one pool of names. ``letter``: of its tensors; ``readable``: of tensors that
    may be read as well; ``scale``: how many times as many rows tensors have as on the CPU."""

    def __init__(
        self, dice: random.Random, names: dict[str, Any], letter: str = "t", scale: int = 1
    ) -> None:
        self.dice = dice
        self.names = names
        self.letter = letter
        self.readable = letter
        self.scale = scale
        self.mine: set[str] | None = None  # names of its letter that may be read; None: all

    def fill(self, template: str) -> str:
        """The line; NoFit if the program holds nothing for one of its holes."""
        chosen: dict[str, Any] = {}
        return _HOLE.sub(lambda hole: self.hole(hole.group(1), chosen), template)

    def tensors(self, fits: Callable[[Tensor], bool]) -> list[str]:
        return [
            name
            for name, value in self.names.items()
            if isinstance(value, Tensor)
            and name[0] in self.readable
            and name[1:].isdigit()
            and (self.mine is None or name[0] != self.letter or name in self.mine)
            and fits(value)
        ]

    def one_of(self, names: list[str]) -> str:
        if not names:
            raise NoFit
        return self.dice.choice(names)

    def hole(self, hole: str, chosen: dict[str, Any]) -> str:
        dice = self.dice
        if "|" in hole:
            return dice.choice(hole.split("|"))
        if hole in _FITS:
            return self.note(self.one_of(self.tensors(_FITS[hole])), chosen)
        first = chosen.get("1")
        if hole in ("1", "same", "kin", "mate"):
            if hole == "1":
                return first
            names = self.tensors(_like(self.names[first], hole))
            others = [name for name in names if name != first]
            return self.note(self.one_of(others or names), chosen)
        if hole == "apart":
            taken = {self.names[name].untyped_storage()._cdata for name in chosen["all"]}
            return self.one_of(
                self.tensors(
                    lambda t: (
                        _is_free(t) and _can_grow(t) and t.untyped_storage()._cdata not in taken
                    )
                )
            )
        if hole == "d":
            return str(dice.randint(-1, max(self.names[first].dim() - 1, 0)))
        if hole in ("o", "t!"):
            if hole == "o":
                return f"{self.letter}{dice.randrange(_SLOTS['o'])}"
            return self.one_of([n for n in self.tensors(lambda t: True) if n[0] == self.letter])
        return self.small(hole, chosen)

    def note(self, name: str, chosen: dict[str, Any]) -> str:
        chosen.setdefault("1", name)
        chosen.setdefault("all", []).append(name)
        return name

    def small(self, hole: str, chosen: dict[str, Any]) -> str:
        dice = self.dice
        if hole == "k":
            return str(dice.randint(1, 5))
        if hole == "c":
            return str(round(dice.uniform(-1.5, 1.5), 2))
        if hole == "s":
            return str(dice.randrange(1000))
        if hole == "shape":
            rows, *rest = dice.choice(_SHAPES).split(", ")
            return ", ".join([str(int(rows) * self.scale), *rest])
        if hole == "dtype":
            return dice.choice(_DTYPES)
        if hole == "scale":
            return str(self.scale)
        if hole == "opt!net":
            chosen["pair"] = self.one_of(self.held("opt"))[1:]
            return f"m{chosen['pair']}"
        if hole.endswith("!"):
            kind = hole[:-1]
            if "pair" in chosen and kind in ("net", "opt"):
                return f"{_LETTERS[kind]}{chosen['pair']}"
            return self.one_of(self.held(kind))
        if hole == "opt":
            chosen["pair"] = self.one_of(self.held("net"))[1:]
            return f"q{chosen['pair']}"
        return f"{self.name_of(hole)}{dice.randrange(_SLOTS.get(hole, 4))}"

    def name_of(self, kind: str) -> str:
        return _LETTERS[kind]

    def held(self, kind: str) -> list[str]:
        letter = _LETTERS[kind]
        return [name for name in self.names if name[0] == letter and name[1:].isdigit()]


def _like(first: Tensor, how: str) -> Callable[[Tensor], bool]:
    dtype, shape = first.dtype, first.shape
    if how == "same":
        return lambda t: t.dtype == dtype and t.shape == shape
    if how == "kin":
        return lambda t: t.dtype == dtype
    return lambda t: t.dtype == dtype and t.dim() == 2 and t.shape[-1] == shape[-1]
