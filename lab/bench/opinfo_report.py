"""What ``lab/bench/opinfo.py`` says of a run: its JSON object, that of all shards, and a table."""

from __future__ import annotations

import argparse
import collections
import json
import platform
import sys
from pathlib import Path
from typing import Any

from bench import records

Report = dict[str, Any]

# What the shards of one run have in common.
SAME = ("suite", "method", "device", "machine", "commit", "torch", "python",
        "samples_per_operator_and_type", "quick")  # fmt: skip


def show_progress(done: int, total: int) -> None:
    """One line on a terminal; nothing into a log."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done}/{total}", end=end, file=sys.stderr, flush=True)


def summarise(
    args: argparse.Namespace,
    done: dict[str, dict[str, Any]],
    cases: int,
    seconds: float,
    commit: str,
) -> dict[str, Any]:
    """The JSON object of a run."""
    import torch

    by_status: dict[str, list[str]] = {"passed": [], "skipped": [], "failed": []}
    reasons: dict[str, list[str]] = {}
    method = "lms-drop" if args.drop else "lms-stress"
    if args.slices != "auto":
        method += "-slices" if args.slices == "always" else f"-{args.slices}"
    refused: collections.Counter[str] = collections.Counter()
    for key, record in done.items():
        by_status[record["status"]].append(key)
        refused.update(record.get("refused", {}))
        if record["status"] == "skipped":
            reasons.setdefault(record["reason"], []).append(key)
    passed = [done[key] for key in by_status["passed"]]
    facts = records.machine(args.device)
    machine = facts["gpu"] or f"{facts['cpu']}, {facts['cpus']} cores"
    return {
        "suite": "opinfo",
        "method": "plain" if args.plain_only else method,
        "device": args.device,
        "machine": machine,
        "commit": commit,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "samples_per_operator_and_type": args.samples,
        "quick": args.quick,
        "shard": args.shard,
        "seconds": round(seconds, 1),
        "passed": len(passed),
        "skipped": {reason: len(names) for reason, names in sorted(reasons.items())},
        "not_reached": cases - len(done),
        "failed": len(by_status["failed"]),
        "runs_compared": sum(record["runs"] for record in passed),
        "runs_not_compared": dict(sorted(refused.items())),
        "differ_in_plain_pytorch": {r["end"]: r["cleared"] for r in passed if r.get("cleared")},
        "evictions": sum(record["evictions"] for record in passed),
        "evictions_clean": sum(record["clean"] for record in passed),
        "without_eviction": [r["end"] for r in passed if not r["evictions"]],
        "drops": sum(record.get("drops", 0) for record in passed),
        "remakes": sum(record.get("remakes", 0) for record in passed),
        "slices": sum(record.get("slices", 0) for record in passed),
        "in_place": sum(record.get("in_place", 0) for record in passed),
        **(_in_chains(passed) if args.slices == "chains" else {}),
        "operators_in_place": len({r["end"].split("|")[0] for r in passed if r.get("in_place")}),
        "operators_sliced": len({r["end"].split("|")[0] for r in passed if r.get("slices")}),
        "operators_dropped": len({r["end"].split("|")[0] for r in passed if r.get("remakes")}),
        "failures": {key: done[key]["reason"] for key in by_status["failed"]},
        "skips": {reason: sorted(names) for reason, names in sorted(reasons.items())},
    }


def _in_chains(passed: list[dict[str, Any]]) -> Report:
    """Calls that waited, and those that made rows of what did."""
    return {
        "in_rows": sum(record["in_rows"] for record in passed),
        "by_rows": sum(record["by_rows"] for record in passed),
        "operators_in_rows": len({r["end"].split("|")[0] for r in passed if r["in_rows"]}),
    }


def merge(paths: list[Path]) -> Report:
    """The report of the run whose shards these are; ends the program if they do not make up one.

    Its ``seconds`` are those of the longest shard, as shards may run side by side.
    """
    shards: dict[str, Report] = {}
    first: Report = {}
    for path in paths:
        report = _read_shard(path)
        first = first or report
        for key in SAME:
            if report[key] != first[key]:
                text = f"{key} {report[key]!r}, and {first[key]!r} in {paths[0]}"
                raise SystemExit(f"{path}: not of the same run: {text}")
        if report.keys() != first.keys():
            raise SystemExit(f"{path}: not the fields of {paths[0]}")
        if report["shard"] in shards:
            raise SystemExit(f"{path}: shard {report['shard']} was given already")
        shards[report["shard"]] = report
    count = first["shard"].split("/")[1]
    wanted = [f"{part}/{count}" for part in range(int(count))]
    if other := [shard for shard in shards if shard not in wanted]:
        raise SystemExit(f"shard {other[0]} is of another split than {first['shard']}")
    if missing := [shard for shard in wanted if shard not in shards]:
        raise SystemExit(f"not given: {', '.join(missing)}")
    merged = {key: _total([one[key] for one in shards.values()]) for key in first if key != "shard"}
    merged |= {key: first[key] for key in SAME}
    merged["seconds"] = max(one["seconds"] for one in shards.values())
    return merged | {"shards": len(shards)}


def _read_shard(path: Path) -> Report:
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}") from error
    if not isinstance(report, dict) or not {*SAME, "shard"} <= report.keys():
        raise SystemExit(f"{path}: not the report of a shard")
    return report


def _total(values: list[Any]) -> Any:
    """Numbers added up, lists put together, objects key by key."""
    if isinstance(values[0], dict):
        keys = sorted(set().union(*values))
        return {key: _total([one[key] for one in values if key in one]) for key in keys}
    if isinstance(values[0], list):
        return sorted(item for one in values for item in one)
    return values[0] if isinstance(values[0], str) else sum(values)


def print_table(report: dict[str, Any]) -> None:
    """The counts on the terminal."""
    print(f"OpInfo on {report['device']} ({report['machine']}), torch {report['torch']}")
    print(f"  passed   {report['passed']:6d}   ({report['runs_compared']} runs compared)")
    print(f"  skipped  {sum(report['skipped'].values()):6d}")
    for reason, count in report["skipped"].items():
        print(f"           {count:6d}   {reason}")
    if report["not_reached"]:
        print(f"  not reached {report['not_reached']}")
    print(f"  failed   {report['failed']:6d}")
    for key, reason in report["failures"].items():
        print(f"           {key}: {reason[:300]}")
    print(f"  evictions {report['evictions']}, of them clean {report['evictions_clean']}")
    print(f"  drops {report['drops']}, computed again {report['remakes']}")
    print(f"  in slices {report['slices']}, in place {report['in_place']}")
