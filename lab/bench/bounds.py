"""Bounds of step times, and their way into the records of the runs that they bound.

Two kinds of file are read:
- `{step: {ratio: overhead}}`, with ratios such as "1.25" or "2x", and overheads as fractions: 0.45
  is 45 %;
- the list that `lab/bench/bound_table.cpp` writes, of bounds on the golden traces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import records
from bench.records import Record

# By whether there is recomputation: the field that has the bound, and the methods it holds for; the
# first is the one that ought to have been run.
_FIELDS = {
    False: ("bound_overhead", ("lms-swap", "lms-reactive")),
    True: ("bound_recompute_overhead", ("lms",)),
}


@dataclass(frozen=True)
class Given:
    """A bound of a step at a limit."""

    step: str
    ratio: float
    recompute: bool
    overhead: float


def read(path: Path, *, recompute: bool) -> list[Given]:
    """The bounds in a file; those by step and ratio are with recomputation if `recompute`. Limits
    that no plan could keep have none."""
    content = json.loads(path.read_text())
    if isinstance(content, list):
        return [_of_table(entry) for entry in content if entry["bound_percent"] != "infeasible"]
    return [
        Given(step, float(ratio.rstrip("x×")), recompute, overhead)
        for step, of_ratio in content.items()
        for ratio, overhead in of_ratio.items()
    ]


def _of_table(entry: Record) -> Given:
    kind = entry["method"]
    step = entry["step"] + ("_in_backward" if kind == "in_backward" else "")
    return Given(step, entry["ratio"], kind != "swap", entry["bound_percent"] / 100)


def is_ratio(record: Record, ratio: float) -> bool:
    """Whether the run was at this ratio. A limit is whole bytes, so that the record's is not
    exactly what was asked for."""
    return bool(record["ratio"]) and abs(record["ratio"] / ratio - 1) < 1e-4


def merge(directory: Path, given: Iterable[Given]) -> tuple[int, list[str]]:
    """Write bounds into the records in `directory` of runs under LMS with a limit, other than of
    tiny steps. Returns how many records got one, and for which bounds no run was found."""
    files = records.read_files(directory)
    count, unused = 0, []
    for bound in given:
        field, methods = _FIELDS[bound.recompute]
        used = False
        for file, record in files.items():
            tiny = (record["options"] or {}).get("tiny", False)
            if record["step"] != bound.step or tiny or not record["limit_bytes"]:
                continue
            if record["method"] in methods and is_ratio(record, bound.ratio):
                record[field] = bound.overhead
                records.write(record, file)
                count += 1
                used = used or record["method"] == methods[0]
        if not used:
            unused.append(f"{methods[0]} of {bound.step} at {bound.ratio:g}")
    return count, unused
