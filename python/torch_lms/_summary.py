"""The table that ``memory_summary`` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from ._statistics import ALL, TABLE, Statistic

_WIDTH = 76


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


def _value(row: Statistic, value: int) -> str:
    return format_bytes(value) if row.unit == "bytes" else str(value)


def format_summary(device: str | None, stats: Mapping[str, int], state: str = "") -> str:
    """The table for one device; says so if nothing is managed. Absent keys leave out their rows.
    `state`: whether its steps are planned, in words."""
    lines = [_rule("="), _line("LMS memory summary" + (f", device {device}" if device else ""))]
    if device is None:
        lines += [_line("nothing is managed: call torch_lms.enable()"), _rule("=")]
        return "\n".join(lines)
    lines += [_rule("="), _row("bytes", [column.capitalize() for column in ALL]), _rule("-")]
    shown = [row for row in TABLE if row.title]
    for row in shown:
        if row.columns and f"{row.key}.current" in stats:
            values = [stats.get(f"{row.key}.{column}") for column in ALL]
            lines.append(_row(row.title, ["" if v is None else _value(row, v) for v in values]))
    lines.append(_rule("-"))
    for row in shown:
        if not row.columns and row.key in stats:
            lines.append(_pair(row.title, _value(row, stats[row.key])))
    if state:
        lines.append(_rule("-"))
        lines += [_line(part) for part in textwrap.wrap(f"steps: {state}", _WIDTH - 4)]
    lines.append(_rule("="))
    return "\n".join(lines)
