"""The command line: ``python -m attack --programs 1000``.

    python -m attack --programs 100000 --jobs 2       seeds 0 to 99,999
    python -m attack --first 4711 --programs 1        one seed
    python -m attack --corpus                         only what once failed
    python -m attack --file failure.json --shrink     a failure that was kept
    python -m attack --merge a.json b.json --json c   no run: sums of what --json wrote

What fails is shrunk, printed as Python, and kept as JSON in ``--failures``. The exit status is 0
if nothing failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / name) for name in ("python", "tests/python", "lab")]

from attack import counts, known, workers  # noqa: E402
from attack.program import Program, listing  # noqa: E402
from attack.shrink import shrink  # noqa: E402

CORPUS = HERE / "corpus"


def corpus() -> list[workers.Task]:
    """The programs that once failed, but for those of defects that are known."""
    records = [json.loads(path.read_text()) for path in sorted(CORPUS.glob("*.json"))]
    return [one["program"] for one in records if not known.is_known(one.get("known", ""))]


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--batch", type=int, default=100, help="programs a process")
    parser.add_argument("--corpus", action="store_true", help="only the corpus")
    parser.add_argument("--seeds", action="store_true", help="without the corpus")
    parser.add_argument("--file", type=Path, help="only the program of this JSON")
    parser.add_argument("--shrink", action="store_true", help="shrink what fails")
    parser.add_argument("--shrink-seconds", type=float, default=120, help="for one failure")
    parser.add_argument("--show", action="store_true", help="print the programs, run nothing")
    parser.add_argument("--all", action="store_true", help="known defects as well")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one program")
    parser.add_argument("--json", type=Path, help="writes counts and failing seeds there")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="sums such files")
    parser.add_argument("--failures", type=Path, default=Path("out/attack"), help="a folder")
    return parser.parse_args(argv)


def show(first: int, count: int, device: str) -> None:
    """Prints programs."""
    import torch

    from attack.digest import Reader
    from attack.generate import make

    torch.set_num_threads(1)
    for seed in range(first, first + count):
        print(listing(make(seed, Reader(), device)[0]), end="\n\n")


def main(argv: list[str] | None = None) -> int:
    """Runs; the exit status."""
    args = parse_arguments(argv)
    if args.show:
        show(args.first, args.programs, args.device)
        return 0
    if args.merge:
        merged = counts.merge(args.merge)
        for row in merged["runs"]:
            print(f"{row['device']} at {row['commit']}: {row['programs']} {row['verdicts']}")
        if args.json:
            args.json.write_text(json.dumps(merged, indent=1) + "\n")
        return 0
    if args.all:
        known.KNOWN.clear()
    workers.TIMEOUT = args.timeout
    origin = counts.origin(args.device) if args.json else {}
    workers.import_everything()
    start = time.monotonic()

    def tasks() -> Iterator[workers.Task]:
        if args.file:
            yield json.loads(args.file.read_text())["program"]
            return
        if args.device == "cpu" and not args.seeds:
            yield from corpus()
        if not args.corpus:
            for seed in range(args.first, args.first + args.programs):
                if args.seconds and time.monotonic() - start > args.seconds:
                    return
                yield seed

    verdicts: collections.Counter[str] = collections.Counter()
    stats: collections.Counter[str] = collections.Counter()
    failures: list[workers.Result] = []
    for result in workers.run_all(tasks(), args.device, args.jobs, args.batch):
        if result.kind == "crash" and result.program is not None:
            if workers.crashes_plainly(result.program, args.device):
                result.kind = "unusable"
        verdicts[result.kind] += 1
        stats.update(result.stats)
        stats["programs planned"] += result.stats.get("plan.steps", 0) > 0
        if result.failed:
            failures.append(result)
            print(f"\n{result.kind}, seed {seed_of(result)}: {result.text[:400]}", flush=True)
        if len(failures) == args.most:
            break
        if sys.stderr.isatty():
            done = f"\r{sum(verdicts.values())} {dict(verdicts)}"
            print(done, end="", file=sys.stderr, flush=True)
    seconds = time.monotonic() - start
    total = sum(verdicts.values())
    print(f"{total} programs in {seconds:.0f} s ({total / seconds:.0f} a second): {dict(verdicts)}")
    print(f"counted: {dict(stats)}", flush=True)
    if args.json:
        record = {"device": args.device, **origin, "first": args.first, "programs": total}
        record |= {"seconds": round(seconds, 1), "verdicts": dict(verdicts), "counted": dict(stats)}
        record |= {"failing": [{"seed": seed_of(f), "verdict": f.kind} for f in failures]}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    for failure in failures:
        keep(failure, args)
    return 1 if failures else 0


def seed_of(result: workers.Result) -> str:
    """The seed, marked where the program came from a file."""
    return str(result.task) if isinstance(result.task, int) else f"{result.task['seed']}-kept"


def keep(result: workers.Result, args: argparse.Namespace) -> None:
    """Prints a failure and writes it down, shrunk if that was asked for."""
    name = seed_of(result)
    print(f"\n== {result.kind}, seed {name}: {result.text[:1500]}", flush=True)
    if result.program is None:
        return
    program = Program.from_json(result.program)
    note = ""
    if args.shrink:
        smaller = shrink(program, result.kind, args.jobs, args.shrink_seconds)
        note = smaller.note
        program = smaller.program
        print(f"-- {note}")
    print(listing(program), flush=True)
    args.failures.mkdir(parents=True, exist_ok=True)
    record = {"kind": result.kind, "text": result.text, "note": note}
    record |= {"before": result.before if "alone" not in note else []}
    record |= {"program": program.to_json()}
    path = args.failures / f"{result.kind}-{name}.json"
    path.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    sys.exit(main())
