"""Runs a program in plain PyTorch and managed, and holds the two against each other.

Setting ``STRESS_REFERENCE_ONLY=1`` runs the plain halves alone, for a machine without
``torch_lms``; without it, a package that cannot be imported is a failure and not a skip.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .compare import Bits, bits_of, differences
from .registry import Program, Result

UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def lms() -> Any:
    """The package under test."""
    import torch_lms

    return torch_lms


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables for the length of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def held(device: str) -> int:
    """Bytes that this process has taken from a GPU and cannot give back now.

    Earlier tests leave some behind (cuBLAS workspaces, graph pools): a test's limit is on top. The
    24 MiB are the granularity of PyTorch's allocator, in segments of 2 and of 20 MiB.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device) + (24 << 20)


@contextlib.contextmanager
def managed(
    device: str, *, stress: bool | str = False, min_block: int | str = "4KiB", **settings: Any
) -> Iterator[Any]:
    """``enable`` on entry and ``disable`` on exit, whatever happened in between."""
    package = lms()
    gc.collect()  # a failed test's frames hold tensors, which would count against the limit
    if device.startswith("cuda") and isinstance(settings.get("limit"), int | str):
        settings["limit"] = held(device) + parse_bytes(str(settings["limit"]))
    # Through the variable, as a user would.
    value = stress if isinstance(stress, str) else str(int(stress))
    with environment(LMS_STRESS=value):
        package.enable(min_block=min_block, device=device, **settings)
    try:
        yield package
    finally:
        package.disable()


def settle(device: str) -> None:
    """Wait for the device, so that what follows sees finished work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


@functools.cache
def _two_plain_runs(program: Program, device: str) -> tuple[Bits, list[str]]:
    first = bits_of(program.run(device))
    return first, differences(first, bits_of(program.run(device)))


def plain_bits(program: Program, device: str) -> Bits:
    """The program's result in plain PyTorch; skips where two plain runs differ."""
    first, wrong = _two_plain_runs(program, device)
    assert first, "the program returned nothing to compare"
    if wrong:
        pytest.skip(f"two plain runs differ, so there is nothing to compare with: {wrong[:3]}")
    return first


_MORE_PLAIN_RUNS = 20


def check_same_as_plain(
    program: Program, device: str, expected: Bits, actual: Bits, when: str
) -> None:
    """Fail with the paths that differ. Skips if each of them is one that plain runs on a GPU leave
    to chance, once in a while."""
    wrong = differences(expected, actual)
    if wrong and device.startswith("cuda"):
        left = {_path(line) for line in wrong}
        for _ in range(_MORE_PLAIN_RUNS):
            left -= {_path(line) for line in differences(expected, bits_of(program.run(device)))}
            if not left:
                pytest.skip(f"plain runs differ now and then, and this one by: {wrong[:3]}")
    check_same(expected, actual, when)


def _path(difference: str) -> str:
    return difference.partition(": ")[0]


def check_same(expected: Bits, actual: Bits, when: str) -> None:
    """Fail with the paths that differ."""
    wrong = differences(expected, actual)
    assert not wrong, f"{when}: {len(wrong)} of {len(expected)} differ: " + "; ".join(wrong[:8])


def run_managed(
    program: Program,
    device: str,
    expected: Bits,
    *,
    before: dict[str, int] | None = None,
    **settings: Any,
) -> dict[str, int]:
    """Run under LMS and compare, both before and after ``disable()``; the statistics.

    ``before``: takes those from before the run.
    """
    with managed(device, **settings) as package:
        if before is not None:
            before.update(package.memory_stats(device))
        result: Result = program.run(device)
        found = bits_of(result)
        settle(device)
        stats = dict(package.memory_stats(device))
    check_same_as_plain(program, device, expected, found, f"{program.name}, managed")
    check_same(found, bits_of(result), f"{program.name}, after disable()")
    return stats


def parse_bytes(text: str) -> int:
    """``1.5 MiB`` or ``4096 bytes`` as a number of bytes, rounded up."""
    match = re.fullmatch(r"\s*([\d.,_]+)\s*([KMGT]?i?B?)(?:ytes)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"not a number of bytes: {text!r}")
    number = float(match.group(1).replace(",", "").replace("_", ""))
    unit = UNITS[match.group(2).upper()]
    # A printed value is rounded: one unit of its last digit covers what was cut off.
    digits = len(match.group(1).partition(".")[2])
    slack = 0 if unit == 1 else unit / 10**digits
    return int(number * unit + slack) + 1


def smallest_workable_limit(error: BaseException) -> int:
    """The limit that an out-of-memory error says would do: the exact bytes where it gives them."""
    text = str(error)
    at = re.search(r"smallest (?:workable )?limit", text, re.IGNORECASE)
    assert at, f"the error does not name the smallest workable limit: {text}"
    amount = re.search(
        r"([\d.]*\d)\s*([KMGT]?iB|bytes|B)(?: \((\d+) bytes\))?", text[at.end() : at.end() + 120]
    )
    assert amount, f"no amount follows the words 'smallest limit': {text}"
    if amount.group(3):
        return int(amount.group(3))
    return parse_bytes(f"{amount.group(1)} {amount.group(2)}")
