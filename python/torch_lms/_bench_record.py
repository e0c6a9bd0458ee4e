"""Records of measurements, of the schema ``lms-bench/1``: one JSON file a try."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[], Any]
Build = Callable[[int], Step]
Record = dict[str, Any]

SCHEMA = "lms-bench/1"


def read_record(path: Path) -> Record | None:
    """None for a file that is not there, not whole, or no record."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    is_one = isinstance(record, dict) and record.get("schema") == SCHEMA and "outcome" in record
    return record if is_one else None


def write_record(path: Path, record: Record) -> None:
    """The file is whole or as it was, even if the machine fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial.{os.getpid()}")
    try:
        with partial.open("w") as file:
            file.write(json.dumps(_finite(record), indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def other_setting(known: Record, asked: Record) -> str:
    """What of a record is otherwise than ``asked``, as ``"cap 1024, not 2048"``; or ``""``."""
    asked = json.loads(json.dumps(_finite(asked)))
    for key in ("model", "precision", "cap", "batch", "sides", "samples", "settings"):
        if known.get(key) != asked[key]:
            return f"{key} {known.get(key)}, not {asked[key]}"
    return ""


def _finite(value: Any) -> Any:
    """JSON has no word for what is not finite: null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
