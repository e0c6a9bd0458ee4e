"""Tables of results, as Markdown, and the bounds beside them.

    python bench/report.py [DIR]                  one row a record
    python bench/report.py [DIR] --planned        one row a planned run, and what it is up against
    python bench/report.py [DIR] --recording      what recording costs, one row a phase
    python bench/report.py [DIR] --merge-bounds bounds.json

The last writes bounds into the records of runs under a limit: `{step: {ratio: overhead}}`, with
ratios such as "1.25" or "2x", and overheads as fractions: 0.45 is 45 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records
from bench.records import Record

METHOD_ORDER = (
    "plain",
    "lms-fits",
    "lms-recording",
    "lms",
    "lms-swap",
    "lms-reactive",
    "checkpoint",
    "save_on_cpu",
)


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


def share(value: Any) -> str:
    """A share of something as per cent, or a dash."""
    return "–" if value is None else f"{value * 100:.1f} %"


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
    align = ["---", "---"] + ["---:"] * (len(COLUMNS) - 3) + ["---"]
    return _table([name for name, _ in COLUMNS], align, rows(results)) + _remarks(results)


def _table(header: Sequence[str], align: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (header, align, *body))


def _remarks(results: Sequence[Record]) -> str:
    lines = []
    machines = sorted({describe_machine(r) for r in results})
    if machines:
        lines += ["", *(f"Measured on {text}." for text in machines)]
    failures = _failures(results)
    if failures:
        lines += ["", *(f"- {text}" for text in failures)]
    return "".join(line + "\n" for line in lines)


def _of_bound(record: Record) -> Any:
    """Step time over the bound's."""
    if record["overhead"] is None or record["bound_overhead"] is None:
        return None
    return (1 + record["overhead"]) / (1 + record["bound_overhead"])


def _beside(results: Sequence[Record], record: Record, method: str) -> Any:
    """The overhead of another method at the same step, and limit if it has one."""
    for other in results:
        alike = all(other[key] == record[key] for key in ("step", "machine"))
        if alike and other["method"] == method:
            if other["limit_bytes"] in (None, record["limit_bytes"]):
                return other["overhead"]
    return None


_LOOPS = "loop_"


def planned(results: Sequence[Record]) -> str:
    """Markdown of the planned runs: bound, predicted and measured overhead side by side with the
    reactive run at the same limit and with `save_on_cpu`; then the loops whose steps differ."""
    swaps = [r for r in sorted(results, key=_order) if r["method"] == "lms-swap"]
    columns: list[tuple[str, Callable[[Record], str]]] = [
        ("step", lambda r: r["step"]),
        ("ratio", lambda r: times(r["ratio"])),
        ("limit GiB", lambda r: gib(r["limit_bytes"])),
        ("bound", lambda r: percent(r["bound_overhead"])),
        ("predicted", lambda r: percent(r["predicted_overhead"])),
        ("measured", lambda r: percent(r["overhead"])),
        ("over bound", lambda r: times(_of_bound(r))),
        ("reactive", lambda r: percent(_beside(results, r, "lms-reactive"))),
        ("save_on_cpu", lambda r: percent(_beside(results, r, "save_on_cpu"))),
        ("bit-identical", _same_bits),
        ("allocated of limit", lambda r: share(r["allocated_of_limit"])),
        ("reserved of limit", lambda r: share(r["reserved_of_limit"])),
    ]
    loops: list[tuple[str, Callable[[Record], str]]] = [
        ("loop", lambda r: r["step"]),
        ("ratio", lambda r: times(r["ratio"])),
        ("planned ms", lambda r: milliseconds(r["step_ms"])),
        ("over reactive", lambda r: three_digits(r["over_reactive"])),
        ("steps under a plan", lambda r: share(_planned_share(r))),
        ("divergences", lambda r: "–" if r["divergences"] is None else str(r["divergences"])),
        ("bit-identical", _same_bits),
    ]
    text = ""
    for chosen, of_loops in ((columns, False), (loops, True)):
        body = [
            [show(record) for _, show in chosen]
            for record in swaps
            if record["step"].startswith(_LOOPS) == of_loops
        ]
        if body:
            align = ["---"] + ["---:"] * (len(chosen) - 1)
            text += ("\n" if text else "") + _table([name for name, _ in chosen], align, body)
    return text + _remarks(swaps)


def recording(results: Sequence[Record]) -> str:
    """Markdown of what recording costs: one row a step and phase."""
    body = [
        [
            record["step"],
            phase,
            str(len(of["step_ms_all"])),
            f"{of['step_ms']:.2f}",
            fine_percent(of["over_off"]),
            fine_percent(of["overhead"]),
            gib(of["bytes_out"]),
            gib(of["bytes_in"]),
        ]
        for record in sorted(results, key=_order)
        for phase, of in (record["phases"] or {}).items()
    ]
    header = ["step", "phase", "steps", "step ms", "over off", "over plain", "out GiB", "in GiB"]
    recorded = [record for record in results if record["phases"]]
    return _table(header, ["---", "---"] + ["---:"] * 6, body) + _remarks(recorded)


def fine_percent(value: Any) -> str:
    """A small fraction as per cent, or a dash."""
    return "–" if value is None else f"{value * 100:+.2f} %"


def three_digits(value: Any) -> str:
    """A ratio in which a per cent matters, or a dash."""
    return "–" if value is None else f"{value:.3f}×"


def _planned_share(record: Record) -> Any:
    if record["plan_steps"] is None or not record["step_ms_all"]:
        return None
    return record["plan_steps"] / len(record["step_ms_all"])


def merge_bounds(
    directory: Path, bounds: Mapping[str, Mapping[str, float]]
) -> tuple[int, list[str]]:
    """Write bounds into the records in `directory` of runs under LMS with a limit, other than of
    tiny steps. Returns how many records got one, and which bounds no planned run was found for."""
    files = records.read_files(directory)
    count, unused = 0, []
    for step, of_ratio in bounds.items():
        for text, overhead in of_ratio.items():
            ratio, used = float(text.rstrip("x×")), False
            for file, record in files.items():
                if record["step"] != step or not record["ratio"] or not record["limit_bytes"]:
                    continue
                # A limit is whole bytes, so that its ratio is not exactly what was asked for.
                near = abs(record["ratio"] / ratio - 1) < 1e-4
                tiny = (record["options"] or {}).get("tiny", False)
                if near and not tiny and record["method"] in ("lms-swap", "lms-reactive"):
                    record["bound_overhead"] = overhead
                    records.write(record, file)
                    count += 1
                    used = used or record["method"] == "lms-swap"
            if not used:
                unused.append(f"{step} {text}")
    return count, unused


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
    """Carry out the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", nargs="?", type=Path, default=records.ROOT / "bench/results")
    parser.add_argument("--step", action="append", help="only this step (may be repeated)")
    parser.add_argument("--planned", action="store_true", help="the planned runs")
    parser.add_argument("--recording", action="store_true", help="what recording costs")
    parser.add_argument("--merge-bounds", type=Path, metavar="FILE", help="fill in bounds")
    arguments = parser.parse_args()
    if arguments.merge_bounds:
        bounds = json.loads(arguments.merge_bounds.read_text())
        count, unused = merge_bounds(arguments.directory, bounds)
        print(f"bounds of {count} records written")
        for what in unused:
            print(f"no planned run of {what}")
        return
    results = records.read_all(arguments.directory)
    if arguments.step:
        results = [r for r in results if r["step"] in arguments.step]
    if arguments.planned and not any(r["method"] == "lms-swap" for r in results):
        parser.error(f"no planned runs in {arguments.directory}")
    if arguments.recording and not any(r["phases"] for r in results):
        parser.error(f"no runs of lms-recording in {arguments.directory}")
    if not results:
        parser.error(f"no records in {arguments.directory}")
    if arguments.recording:
        print(recording(results), end="")
        return
    print(planned(results) if arguments.planned else markdown(results), end="")


if __name__ == "__main__":
    main()
