"""Tables of results, as Markdown, and the bounds beside them.

    python lab/bench/report.py [DIR]                  one row a record
    python lab/bench/report.py [DIR] --recompute      one row a run that recomputes, likewise
    python lab/bench/report.py [DIR] --planned        the same of planned runs that only copy
    python lab/bench/report.py [DIR] --recording      what recording costs, one row a phase
    python lab/bench/report.py [DIR] --merge-bounds bounds.json [--recompute]

The last writes bounds into the records of runs under a limit, of runs that only copy or of those
that recompute; `lab/bench/bounds.py` says from which files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import bounds, records
from bench.records import Record
from bench.suites import DETERMINISTIC, WANTED

METHOD_ORDER = (
    "plain",
    "lms-fits",
    "lms-recording",
    "lms",
    "lms-swap",
    "lms-reactive",
    "checkpoint",
    "save_on_cpu",
    "host",
)


def gib(count: Any) -> str:
    """Bytes as GiB, or a dash."""
    if count is None:
        return "–"
    amount = count / 2**30
    return f"{amount:.2f}" if amount >= 1 or amount == 0 else f"{amount:.3g}"


def gigabytes(count: Any) -> str:
    """Bytes as GB, or a dash."""
    return "–" if count is None else f"{count / 1e9:.2f}"


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


def _other(results: Sequence[Record], record: Record, method: str) -> Record:
    """The record of another method at the same step, and limit if it has one; else an empty one."""
    for other in results:
        alike = all(other[key] == record[key] for key in ("step", "machine"))
        if alike and other["method"] == method:
            if other["limit_bytes"] in (None, record["limit_bytes"]):
                return other
    return records.empty(record["step"], method)


def _beside(results: Sequence[Record], record: Record, method: str) -> Any:
    """Its overhead."""
    return _other(results, record, method)["overhead"]


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


def recompute(results: Sequence[Record]) -> str:
    """Markdown of the runs that recompute: what is wanted, bound, predicted and measured overhead
    side by side with copies alone at the same limit and with what users do today (overhead, and
    peak of allocated GiB). A step that does not repeat its bits has those of its variant."""
    runs = [r for r in sorted(results, key=_order) if r["method"] == "lms"]

    def today(method: str) -> Callable[[Record], str]:
        def show(record: Record) -> str:
            other = _other(results, record, method)
            if other["overhead"] is None:
                return "–"
            return f"{percent(other['overhead'])} in {gib(other['allocated_peak'])}"

        return show

    columns: list[tuple[str, Callable[[Record], str]]] = [
        ("step", lambda r: r["step"]),
        ("ratio", lambda r: times(r["ratio"])),
        ("limit GiB", lambda r: gib(r["limit_bytes"])),
        ("wanted", _wanted),
        ("bound", lambda r: percent(r["bound_recompute_overhead"])),
        ("predicted", lambda r: percent(r["predicted_overhead"])),
        ("measured", lambda r: percent(r["overhead"])),
        ("prediction off by", lambda r: percent(_misjudged(r))),
        ("copies alone", lambda r: percent(_beside(results, r, "lms-swap"))),
        ("checkpoint", today("checkpoint")),
        ("save_on_cpu", today("save_on_cpu")),
        ("bit-identical", lambda r: _bits_and_weights(results, r)),
        ("reserved of limit", lambda r: share(r["reserved_of_limit"])),
        ("recomputed GB", lambda r: gigabytes(r["bytes_recomputed"])),
        ("out / in GB", lambda r: f"{gigabytes(r['bytes_out'])} / {gigabytes(r['bytes_in'])}"),
    ]
    variants = DETERMINISTIC.values()
    body = [[show(r) for _, show in columns] for r in runs if r["step"] not in variants]
    align = ["---"] + ["---:"] * (len(columns) - 1)
    return _table([name for name, _ in columns], align, body) + _remarks(runs)


def _wanted(record: Record) -> str:
    for ratio, overhead in WANTED.get(record["step"], {}).items():
        if bounds.is_ratio(record, ratio):
            return "stated" if overhead is None else f"≤ {overhead * 100:.0f} %"
    return "–"


def _misjudged(record: Record) -> Any:
    """How far the predicted step time is from the measured one."""
    if not record["predicted_ms"] or not record["step_ms"]:
        return None
    return record["predicted_ms"] / record["step_ms"] - 1


def _bits_and_weights(results: Sequence[Record], record: Record) -> str:
    def say(of: Record) -> str:
        if of["weights_equal"] is False:
            return "NO (weights)"
        losses = _same_bits(of)
        return "losses" if losses == "yes" and of["weights_equal"] is None else losses

    if record["plain_deterministic"] is False:
        for other in results:
            if other["step"] == DETERMINISTIC.get(record["step"]) and other["method"] == "lms":
                return f"{say(other)} (variant, {times(other['ratio'])})"
    return say(record)


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


def describe_machine(record: Record) -> str:
    """One line: the device, processor and versions of a record, and the link where known."""
    machine = record["machine"] or {}
    parts = [machine.get("gpu") or "no GPU", machine.get("cpu"), f"PyTorch {machine.get('torch')}"]
    if machine.get("driver"):
        parts.append(f"driver {machine['driver']}")
    return ", ".join(part for part in parts if part)


_HOST_HEADER = (
    "step",
    "run",
    "loop of Python ms",
    "free ms",
    "over plain",
    "predicted",
    "over predicted",
    "CPU ms",
    "CPU over plain",
    "loss read: ms",
    "over plain",
    "over predicted",
    "issued in ms",
    "operators",
    "remakes",
    "out + in",
)


def _host_row(step: str, name: str, row: Record, plain: Record) -> list[str]:
    if "error" in row:
        return [step, name, first_line(row["error"])[:60], *["–"] * (len(_HOST_HEADER) - 3)]
    free, synced = row["free"], row["synced"]
    base = plain["free"]["step_ms"]
    read, base_read = synced.get("predicted_ms"), plain["synced"]["step_ms"]
    predicted, counted = free.get("predicted_ms"), free.get("per_step", {})

    def count(*keys: str) -> str:
        return f"{sum(counted[key] for key in keys):.0f}" if counted else "–"

    return [
        step,
        name,
        milliseconds(row["python_loop_ms"]),
        milliseconds(free["step_ms"]),
        percent(free["step_ms"] / base - 1),
        percent(predicted / base - 1 if predicted else None),
        percent((free["step_ms"] - predicted) / base if predicted else None),
        milliseconds(free["cpu_ms"]),
        times(free["cpu_ms"] / plain["free"]["cpu_ms"]),
        milliseconds(synced["step_ms"]),
        percent(synced["step_ms"] / base_read - 1),
        percent((synced["step_ms"] - read) / base_read if read else None),
        milliseconds(synced["issued_ms"]),
        count("operators"),
        count("remakes"),
        count("evictions", "page_ins"),
    ]


def host(results: Sequence[Record]) -> str:
    """Markdown of what steps cost the host: a row for each way to run them. `over predicted` is in
    parts of the plain step; processor time is the whole process's."""
    rows = [
        _host_row(r["step"], name, row, r["host"]["plain"])
        for r in results
        if r["host"]
        for name, row in r["host"].items()
    ]
    lines = [list(_HOST_HEADER), ["---"] * 2 + ["---:"] * (len(_HOST_HEADER) - 2), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


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
    parser.add_argument("directory", nargs="?", type=Path, default=records.ROOT / "lab/results")
    parser.add_argument("--step", action="append", help="only this step (may be repeated)")
    parser.add_argument("--recompute", action="store_true", help="the runs that recompute")
    parser.add_argument("--planned", action="store_true", help="the planned runs that only copy")
    parser.add_argument("--recording", action="store_true", help="what recording costs")
    parser.add_argument("--merge-bounds", type=Path, metavar="FILE", help="fill in bounds")
    arguments = parser.parse_args()
    if arguments.merge_bounds:
        given = bounds.read(arguments.merge_bounds, recompute=arguments.recompute)
        count, unused = bounds.merge(arguments.directory, given)
        print(f"bounds of {count} records written")
        for what in unused:
            print(f"no run of {what}")
        return
    results = records.read_all(arguments.directory)
    if arguments.step:
        results = [r for r in results if r["step"] in arguments.step]
    for asked, method in ((arguments.planned, "lms-swap"), (arguments.recompute, "lms")):
        if asked and not any(r["method"] == method for r in results):
            parser.error(f"no runs of {method} in {arguments.directory}")
    if arguments.recording and not any(r["phases"] for r in results):
        parser.error(f"no runs of lms-recording in {arguments.directory}")
    if not results:
        parser.error(f"no records in {arguments.directory}")
    table = markdown
    for asked, chosen in (
        (arguments.recording, recording),
        (arguments.recompute, recompute),
        (arguments.planned, planned),
    ):
        if asked:
            table = chosen
            break
    print(table(results), end="")


if __name__ == "__main__":
    main()
