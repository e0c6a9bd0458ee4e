"""Counts of several runs in one file: a row for all runs of a device, machine and commit.

What is read are files that ``--json`` wrote. A file of rows may be among them, which adds a run to
the rows that there are; what was written into those by hand stays: ``note``, and what follows the
verdict of a failing seed.
"""

from __future__ import annotations

import collections
import json
import multiprocessing
from pathlib import Path
from typing import Any

Row = dict[str, Any]

IDENTITY = ("device", "machine", "commit")
FIELDS = {*IDENTITY, "first", "programs", "seconds", "verdicts", "counted", "failing"}


def origin(device: str) -> dict[str, str]:
    """What a run says of where it ran, and of what."""
    from bench import records

    # In a child: where CUDA is in use, children forked later could not use it.
    with multiprocessing.get_context("fork").Pool(1) as pool:
        facts = pool.apply(records.machine, (device,))
    machine = facts["gpu"] or f"{facts['cpu']}, {facts['cpus']} cores"
    return {"machine": machine, "commit": records.commit()[0]}


def merge(paths: list[Path]) -> dict[str, Any]:
    """The rows of all these runs; ends the program if a file has none, or one is there twice."""
    rows: dict[tuple[str, ...], list[Row]] = {}
    begun: dict[tuple[str, ...], Path] = {}
    for path in paths:
        for row in _rows(path):
            key = tuple(row[name] for name in IDENTITY)
            at = (*key, row["first"])
            if at in begun:
                text = f"the run from seed {row['first']} on is in {begun[at]} already"
                raise SystemExit(f"{path}: {text} ({', '.join(key)})")
            begun[at] = path
            rows.setdefault(key, []).append(row)
    return {"suite": "attack", "runs": [_sum(same) for same in rows.values()]}


def _rows(path: Path) -> list[Row]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}") from error
    rows = content.get("runs", [content]) if isinstance(content, dict) else [{}]
    for row in rows:
        if missing := sorted(FIELDS - row.keys()):
            raise SystemExit(f"{path}: no counts of random programs without {', '.join(missing)}")
        if isinstance(row["failing"], list):  # as a run has them
            row["failing"] = {one["seed"]: one["verdict"] for one in row["failing"]}
    return rows


def _sum(rows: list[Row]) -> Row:
    verdicts: collections.Counter[str] = collections.Counter()
    counted: collections.Counter[str] = collections.Counter()
    failing: dict[str, str] = {}
    for row in rows:
        verdicts.update(row["verdicts"])
        counted.update(row["counted"])
        failing |= row["failing"]
    total = {name: rows[0][name] for name in IDENTITY}
    total["first"] = min(row["first"] for row in rows)
    total["programs"] = sum(row["programs"] for row in rows)
    total["seconds"] = round(sum(row["seconds"] for row in rows))
    total |= {"verdicts": dict(sorted(verdicts.items())), "counted": dict(counted)}
    total["failing"] = failing
    notes = dict.fromkeys(row["note"] for row in rows if row.get("note"))
    return total | ({"note": "; ".join(notes)} if notes else {})
