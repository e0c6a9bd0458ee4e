"""Tables of results: `python bench/report.py [DIR]` prints a directory's records as Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records
from bench.records import Record

METHOD_ORDER = ("plain", "lms-fits", "lms", "lms-swap", "lms-reactive", "checkpoint", "save_on_cpu")


def gib(count: Any) -> str:
    """Bytes as GiB, or a dash."""
    if count is None:
        return "–"
    amount = count / 2**30
    return f"{amount:.2f}" if amount >= 1 or amount == 0 else f"{amount:.3g}"


def milliseconds(value: Any) -> str:
    """A time, or a dash."""
    return "–" if value is None else f"{value:.1f}"


def percent(value: Any) -> str:
    """A fraction as per cent, or a dash."""
    return "–" if value is None else f"{value * 100:+.1f} %"


def times(value: Any) -> str:
    """A ratio, or a dash."""
    return "–" if value is None else f"{value:.2f}×"


def _same_bits(record: Record) -> str:
    if record["bit_identical"] is not None:
        return "yes" if record["bit_identical"] else "NO"
    return "plain varies" if record["plain_deterministic"] is False else "–"


COLUMNS: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ("step", lambda r: r["step"]),
    ("method", lambda r: r["method"]),
    ("limit GiB", lambda r: gib(r["limit_bytes"])),
    ("allocated", lambda r: gib(r["allocated_peak"])),
    ("reserved", lambda r: gib(r["reserved_peak"])),
    ("host", lambda r: gib(r["host_peak"] if (r["host_peak"] or 0) >= 2**20 else 0)),
    ("ratio", lambda r: times(r["ratio"])),
    ("in memory ms", lambda r: milliseconds(r["in_memory_ms"])),
    ("step ms", lambda r: milliseconds(r["step_ms"])),
    ("overhead", lambda r: percent(r["overhead"])),
    ("out GiB", lambda r: gib(r["bytes_out"])),
    ("in GiB", lambda r: gib(r["bytes_in"])),
    ("over floor", lambda r: times(r["over_floor"])),
    ("same bits", _same_bits),
)


def _order(record: Record) -> tuple[Any, ...]:
    method = record["method"]
    rank = METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)
    return record["step"], rank, method, -(record["limit_bytes"] or 0)


def rows(results: Sequence[Record]) -> list[list[str]]:
    """One row a record, sorted by step, method and falling limit; without the header."""
    return [[show(record) for _, show in COLUMNS] for record in sorted(results, key=_order)]


def _failures(results: Sequence[Record]) -> list[str]:
    return [
        f"{r['step']} {r['method']} ({gib(r['limit_bytes'])} GiB) failed: {first_line(r['error'])}"
        for r in sorted(results, key=_order)
        if r["error"]
    ]


def first_line(text: str) -> str:
    """The first line of a message."""
    return text.strip().splitlines()[0] if text.strip() else text


def markdown(results: Sequence[Record]) -> str:
    """A Markdown table of the records, the machines they ran on, and what failed."""
    header = [name for name, _ in COLUMNS]
    align = ["---", "---"] + ["---:"] * (len(COLUMNS) - 3) + ["---"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, align, *rows(results))]
    machines = sorted({describe_machine(r) for r in results})
    if machines:
        lines += ["", *(f"Measured on {text}." for text in machines)]
    failures = _failures(results)
    if failures:
        lines += ["", *(f"- {text}" for text in failures)]
    return "\n".join(lines) + "\n"


def describe_machine(record: Record) -> str:
    """One line: the device, processor and versions of a record, and the link where known."""
    machine = record["machine"] or {}
    parts = [machine.get("gpu") or "no GPU", machine.get("cpu"), f"PyTorch {machine.get('torch')}"]
    if machine.get("driver"):
        parts.append(f"driver {machine['driver']}")
    return ", ".join(part for part in parts if part)


def terminal(results: Sequence[Record]) -> str:
    """The same table in fixed-width columns, and what failed."""
    table = [[name for name, _ in COLUMNS], *rows(results)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join([*lines, *_failures(results)])


def main() -> None:
    """Print the table of a directory of records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=records.ROOT / "bench/results")
    parser.add_argument("--step", action="append", help="only this step (may be repeated)")
    arguments = parser.parse_args()
    results = records.read_all(arguments.directory)
    if arguments.step:
        results = [r for r in results if r["step"] in arguments.step]
    if not results:
        parser.error(f"no records in {arguments.directory}")
    print(markdown(results), end="")


if __name__ == "__main__":
    main()
