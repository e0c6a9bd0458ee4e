"""All programs: importing this module fills ``PROGRAMS``."""

from __future__ import annotations

from . import accelerated, functions, optimizers, processes, storages, training
from .registry import PROGRAMS, Program

__all__ = [
    "PROGRAMS",
    "Program",
    "accelerated",
    "functions",
    "optimizers",
    "processes",
    "storages",
    "training",
]
