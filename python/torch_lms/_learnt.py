"""What a recorded step says of itself: its time and bytes in memory, and what it needs at least."""

from __future__ import annotations

import gzip
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import _library

_LISTS = ("aten::_foreach_", "aten::_fused_a", "aten::_fused_sgd")


@dataclass(frozen=True)
class LearntStep:
    """A step without LMS, by its trace. Blocks below ``min_block`` are not in it."""

    operators: int
    in_memory_ms: float  # all operators, one after the other, without a copy
    in_memory_peak: int  # bytes
    least: int  # bytes: the most that one operator uses at one time, with all else away
    least_operator: str
    unmovable: int  # bytes of blocks that stay: kept, or no operator was seen to use them
    largest_list: int  # bytes that the largest operator over a list uses (an optimizer's)
    list_operator: str
    foreach: int = 0  # bytes that operators named _foreach_ use, each counted at each of them
    foreach_once: int = 0  # and each block counted once


def read_trace(path: str | Path) -> LearntStep:
    """The step in a file of ``save_trace``. ValueError if it is none."""
    data = Path(path).read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    if document.get("format") != "lms-trace":
        raise ValueError(f"{path} is no trace of LMS")
    return _summed(document["names"], document["blocks"], document["operators"])


def _summed(names: list[str], blocks: list, operators: list) -> LearntStep:
    size = [block[0] for block in blocks]
    alive = {at for at, block in enumerate(blocks) if not block[1]}
    live = sum(size[at] for at in alive)
    stuck = {at for at, block in enumerate(blocks) if not block[2]}
    held = sum(size[at] for at in alive & stuck)
    peak = least = most_held = largest_list = 0
    least_operator = list_operator = ""
    foreach = 0
    over_lists: set[int] = set()
    for name, _, workspace, _, reads, writes, allocs, frees, *_ in operators:
        live += sum(size[at] for at in allocs)
        held += sum(size[at] for at in allocs if at in stuck)
        peak = max(peak, live + workspace)
        most_held = max(most_held, held)
        used = {*reads, *writes, *allocs} - stuck
        needs = held + workspace + sum(size[at] for at in used)
        if needs > least:
            least, least_operator = needs, names[name]
        if names[name].startswith(_LISTS) and needs > largest_list:
            largest_list, list_operator = needs, names[name]
        if names[name].startswith("aten::_foreach_"):
            foreach += sum(size[at] for at in used)
            over_lists |= used
        live -= sum(size[at] for at in frees)
        held -= sum(size[at] for at in frees if at in stuck)
    return LearntStep(
        operators=len(operators),
        in_memory_ms=sum(operator[1] for operator in operators),
        in_memory_peak=peak,
        least=least,
        least_operator=least_operator,
        unmovable=most_held,
        largest_list=largest_list,
        list_operator=list_operator,
        foreach=foreach,
        foreach_once=sum(size[at] for at in over_lists),
    )


def learnt_step(device: str) -> LearntStep | None:
    """The step that ``device`` has learnt last; None as long as there is none."""
    with tempfile.TemporaryDirectory(prefix="lms-") as folder:
        path = Path(folder) / "step.json"
        try:
            _library.ops().save_trace(str(path), device)
        except RuntimeError as error:
            if "no step is known" in str(error):
                return None
            raise
        return read_trace(path)
