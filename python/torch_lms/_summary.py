"""The table that ``memory_summary`` prints."""

from __future__ import annotations

from collections.abc import Mapping

_WIDTH = 76
_TIERS = ("device", "host", "file")
_COLUMNS = ("current", "peak", "allocated", "freed")


def format_bytes(count: int) -> str:
    """A count of bytes with four significant digits at most and a unit of 1024."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _rule(mark: str) -> str:
    return f"|{mark * (_WIDTH - 2)}|"


def _row(name: str, cells: list[str]) -> str:
    return f"| {name:<17}" + "".join(f"| {cell:>12}" for cell in cells) + "|"


def _line(text: str) -> str:
    return f"| {text:<{_WIDTH - 4}} |"


def _pair(name: str, value: str) -> str:
    return _line(f"{name:<36}{value:>36}")


def format_summary(device: str | None, stats: Mapping[str, int]) -> str:
    """The table for one device; says so if nothing is managed. Absent keys leave out their rows."""
    lines = [_rule("="), _line("LMS memory summary" + (f", device {device}" if device else ""))]
    if device is None:
        lines += [_line("nothing is managed: call torch_lms.enable()"), _rule("=")]
        return "\n".join(lines)
    lines += [_rule("="), _row("bytes", [column.capitalize() for column in _COLUMNS]), _rule("-")]
    groups = [(f"{tier} tier", f"{tier}.bytes", True) for tier in _TIERS]
    groups += [("pinned", "pinned.bytes", True), ("kept", "kept.bytes", True)]
    groups += [("blocks (count)", "blocks", False)]
    for title, prefix, in_bytes in groups:
        if f"{prefix}.current" not in stats:
            continue
        cells = []
        for column in _COLUMNS:
            value = stats.get(f"{prefix}.{column}")
            shown = "" if value is None else format_bytes(value) if in_bytes else str(value)
            cells.append(shown)
        lines.append(_row(title, cells))
    lines.append(_rule("-"))
    for key, title, in_bytes in (
        ("limit", "limit", True),
        ("host_limit", "limit of the tier below", True),
        ("bytes_out", "moved out", True),
        ("bytes_in", "moved in", True),
        ("evictions", "evictions", False),
        ("evictions.clean", "  of these clean (nothing copied)", False),
        ("page_ins", "page-ins", False),
        ("operators", "operators seen", False),
        ("op_retries", "operators run again after a reclaim", False),
        ("op_changes", "operators with another algorithm", False),
        ("list_splits", "list operators split", False),
        ("alloc.freelist", "allocations from the free list", False),
        ("alloc.driver", "allocations from the driver", False),
        ("alloc.reclaim", "allocations after a reclaim", False),
        ("alloc.retry", "allocations that were retried", False),
    ):
        if key in stats:
            lines.append(_pair(title, format_bytes(stats[key]) if in_bytes else str(stats[key])))
    lines.append(_rule("="))
    return "\n".join(lines)
