"""Measurements of a user's own training step: in memory, under LMS, and with ``save_on_cpu``.

One process a try, and one JSON record each, of the schema ``lms-bench/1`` that ``lms bench``
writes and ``lms report`` draws (docs/studies.md).
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from . import _machine, _settings
from ._bench_record import SCHEMA, Build, Record, other_setting, read_record, write_record
from ._bench_try import run_try

METHODS = ("plain", "lms", "lms-swap", "save_on_cpu")


def bench(
    build: Build,
    sizes: Iterable[int],
    *,
    methods: Sequence[str] = ("plain", "lms"),
    cap: int | str | None = None,
    device: str | None = None,
    out: str | os.PathLike[str] = "bench",
    study: str = "user",
    series: str = "batch",
    model: str | None = None,
    precision: str = "fp32",
    describe: Callable[[int], dict[str, Any]] | None = None,
    warmup: int = 3,
    steps: int = 5,
    settle: int = 12,
    settle_seconds: float = 60.0,
    plan_seconds: float = 2.0,
    min_block: int | str | None = None,
    host_limit: int | str | None = None,
    timeout: float = 300.0,
    again: bool = False,
    quiet: bool = False,
) -> list[Record]:
    """Measures a training step at several sizes, each size and method in a process of its own.

    Args:
        build: ``build(size)`` makes model, data and optimizer, and returns a function without
            arguments that runs one training step and returns its loss (a tensor, a number or
            None). It must be importable from a child process: defined at the top of a module (of a
            script, with ``if __name__ == "__main__":`` around what it runs).
        sizes: in the order in which they are tried.
        methods: of ``"plain"``, ``"lms"``, ``"lms-swap"`` (LMS without recomputation) and
            ``"save_on_cpu"``, which is around the whole step here.
        cap: memory that PyTorch's allocator may reserve on the GPU, and LMS's limit; on the CPU
            LMS's limit alone. By default all there is.
        device: by default CUDA's first, or the CPU where there is none.
        out: records are ``out/study/series/method.size.json``.
        describe: ``describe(size)`` may give ``batch``, ``sides``, ``unit`` (``"MP"``, ``"MV"``,
            ``"images"``) and ``per_step``, how many of those a step takes. By default a size is
            a batch of images.
        warmup: steps before the timed ones; with LMS, those under a settled plan.
        settle: with LMS, most steps until its plan is settled, which may take ``settle_seconds``.
        timeout: seconds of a try, with its start; then it is ended.
        again: make tries again that have a record. What failed is always made again.
        quiet: do not say on standard error which try runs, and how it ended.

    Returns:
        One record a try, in the order of ``sizes``, then ``methods``. Its ``outcome`` is ``"ok"``,
        ``"oom"`` (of the device), ``"host"``, ``"timeout"`` or ``"failed"``; nothing is raised for
        any of these.

    Raises:
        ValueError: an unknown method, a bad amount, or a record that is there already and of
            another cap, model, precision, device or description, which would be taken for what
            was asked; nothing has been made then.
        TypeError: ``build`` cannot be imported by a child process.
    """
    _check_arguments(build, methods, steps, settle, warmup)
    where = _settings.parse_device(device)
    limit = None
    if cap is not None:
        limit = _settings.parse_bytes(cap, lambda: _machine.device_memory(where))
    common: Record = {
        "schema": SCHEMA,
        "study": study,
        "series": series,
        "model": model or build.__name__,
        "precision": precision,
        "cap": limit or 0,
        "settings": {"device": where},
    }
    folder = Path(out) / study / series
    tries = [
        (
            folder / f"{method}.{size}.json",
            size,
            common | {"method": method} | _described(size, describe),
        )
        for size in sizes
        for method in methods
    ]
    task = {
        "device": where,
        "warmup": warmup,
        "steps": steps,
        "settle": settle,
        "settle_seconds": settle_seconds,
        "plan_seconds": plan_seconds,
        "min_block": min_block,
        "host_limit": host_limit,
    }
    return _run_tries(build, tries, task, timeout, again, quiet)


def _run_tries(
    build: Build,
    tries: Sequence[tuple[Path, int, Record]],
    task: dict[str, Any],
    timeout: float,
    again: bool,
    quiet: bool,
) -> list[Record]:
    """One record a try: the one that stands, or one made now."""
    standing = {} if again else _standing({path: record for path, _, record in tries})
    records = []
    for at, (path, size, record) in enumerate(tries, 1):
        if path in standing:
            records.append(standing[path])
            continue
        what = f"torch_lms.bench: {at} of {len(tries)}, {record['method']} at {size}"
        if not quiet:
            print(f"{what} ...", file=sys.stderr, flush=True)
        ended = _run_child(build, record, task | {"size": size, "path": str(path)}, timeout)
        if not quiet:
            print(f"{what}: {_in_words(ended)}", file=sys.stderr, flush=True)
        records.append(ended)
    return records


def _check_arguments(
    build: Build, methods: Sequence[str], steps: int, settle: int, warmup: int
) -> None:
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"{method!r} is none of the methods {', '.join(METHODS)}")
    if "<" in build.__qualname__:
        raise TypeError(
            f"build: {build.__qualname__} cannot be imported: define it at the top of a module"
        )
    for name, value, least in (("steps", steps, 1), ("settle", settle, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ValueError(f"{name}: {value} is below {least}")


def _standing(asked: dict[Path, Record]) -> dict[Path, Record]:
    """The records that are there already and stand for what is asked; one that failed does not."""
    standing: dict[Path, Record] = {}
    for path, record in asked.items():
        known = read_record(path)
        if known is None or known["outcome"] == "failed":
            continue
        if other := other_setting(known, record):
            raise ValueError(
                f"{path} is of other settings: {other}. "
                "Name another out or series, or make it again"
            )
        standing[path] = known
    return standing


def _in_words(record: Record) -> str:
    """How a try ended."""
    if record["outcome"] != "ok":
        return f"{record['outcome']} ({record['message']})"
    return f"ok, {statistics.median(record['steps']):.3f} s a step"


def _described(size: int, describe: Callable[[int], dict[str, Any]] | None) -> Record:
    """What a record says of its size, before anything is known of it."""
    record: Record = {
        "batch": size,
        "sides": [],
        "classes": 0,
        "link_emulated": None,
        "outcome": "failed",
        "message": "",
        "samples": {"unit": "images", "per_step": float(size)},
    }
    if describe is not None:
        facts = dict(describe(size))
        samples = record["samples"]
        samples["unit"] = facts.pop("unit", samples["unit"])
        samples["per_step"] = float(facts.pop("per_step", samples["per_step"]))
        record.update(facts)
    return record


def _run_child(build: Build, record: Record, task: dict[str, Any], timeout: float) -> Record:
    path = Path(task["path"])
    path.unlink(missing_ok=True)
    record["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    begin = time.monotonic()
    # No daemon: a training step may have loaders, which are processes of its own.
    child = multiprocessing.get_context("spawn").Process(
        target=run_try, args=(build, record, task), daemon=False
    )
    child.start()
    late = True
    try:
        child.join(timeout)
        late = child.is_alive()
    finally:
        if late:
            child.kill()
            child.join()
    done = read_record(path)
    if done is None:
        done = dict(record)
        if late:
            done |= {"outcome": "timeout", "message": f"not done after {timeout:.0f} s"}
        elif child.exitcode == -9:
            done |= {"outcome": "host", "message": "killed by the system"}
        else:
            done["message"] = f"ended with status {child.exitcode}"
    done["wall"] = time.monotonic() - begin
    write_record(path, done)
    return done
