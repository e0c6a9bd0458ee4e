"""What a device did in one step, from the events of PyTorch's profiler: spans and gaps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MOST_SPANS = 2000
_MOST_GAPS = 20


def merged(
    spans: Iterable[tuple[float, float]], most: int | None = None
) -> list[tuple[float, float]]:
    """Spans in order, merged where they touch; then the closest, until there are ``most``."""

    def join(ordered: list[tuple[float, float]], apart: float) -> list[tuple[float, float]]:
        joined: list[tuple[float, float]] = []
        for begin, end in ordered:
            if joined and begin - joined[-1][1] <= apart:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((begin, end))
        return joined

    ordered = join(sorted(spans), 0.0)
    if most is None or len(ordered) <= most:
        return ordered
    gaps = sorted(after[0] - before[1] for before, after in zip(ordered, ordered[1:], strict=False))
    return join(ordered, gaps[len(gaps) - most])


def longest_gaps(kernels: Iterable[tuple[float, float, str]]) -> list[dict[str, Any]]:
    """Where no kernel ran, the longest first, with the kernel that ended it."""
    gaps, end = [], None
    for begin, until, name in sorted(kernels):
        if end is not None and begin > end:
            gaps.append({"at": end, "for": begin - end, "before": name[:120]})
        end = until if end is None else max(end, until)
    return sorted(gaps, key=lambda gap: -gap["for"])[:_MOST_GAPS]
