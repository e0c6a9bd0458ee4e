"""One process of measurements: `python -m bench.worker REQUEST.json`.

A request names a step, its options, the device and a list of runs; each run that ends, well or
badly, leaves its record in the file that the request names for it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import memory, methods, records
from bench.ballast import Ballast
from bench.packages import Missing
from bench.setting import Setting
from bench.steps import StepOptions, attention_of, configure
from bench.timing import measure_link


def _setting(request: dict[str, Any], run: dict[str, Any], reference: Any) -> Setting:
    limit = run.get("limit_bytes")
    if limit is None and run.get("ratio") and run["method"] in methods.OWN_PROCESS:
        if reference is None or not reference["allocated_peak"]:
            raise ValueError("a ratio needs a plain run that succeeded: give a limit instead")
        limit = int(reference["allocated_peak"] / run["ratio"])
    return Setting(
        step=request["step"],
        options=StepOptions(**request["options"]),
        device=torch.device(request["device"]),
        limit_bytes=limit,
        headroom=request["headroom"],
        min_block=request["min_block"],
        warmup=run.get("warmup"),
        steps=run.get("steps"),
        compared=run.get("compared"),
        plan_seconds=request["plan_seconds"],
        enable=request["enable"],
        trace=Path(run["trace"]) if run.get("trace") else None,
        reference=reference,
    )


def _describe(error: BaseException) -> str:
    """The error; first the one during whose clean-up it came, if there was one."""
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or error.__context__
    return text if cause is None else f"{_describe(cause)} | then: {text}"


def _one(
    request: dict[str, Any], run: dict[str, Any], facts: records.Record, reference: Any
) -> records.Record:
    record = records.empty(request["step"], run["method"])
    record.update(facts, limit_bytes=run.get("limit_bytes"), ratio=run.get("ratio"))
    try:
        setting = _setting(request, run, reference)
        record["limit_bytes"] = setting.limit_bytes
        if reference is not None and setting.limit_bytes:
            record["in_memory_ms"] = reference["in_memory_ms"]
            record["ratio"] = reference["allocated_peak"] / setting.limit_bytes
        with ExitStack() as stack:
            if _takes_ballast(request, setting, run["method"]):
                memory.release(setting.device)
                setting.ballast = stack.enter_context(
                    Ballast(setting.device, setting.limit_bytes, request["ballast_slack"])
                )
                stack.callback(lambda: record.update(setting.ballast.fields()))
            record.update(methods.run(run["method"], setting))
    except Missing as error:
        record["skipped"] = str(error)
    except Exception as error:  # a failed run is a result, and the next one may succeed
        traceback.print_exc()
        record["error"] = _describe(error)
        record.update(memory.read_peaks(torch.device(request["device"])))
        record.update(getattr(error, "fields", {}))
        records.compare(record, reference)
    return records.finish(record)


def _takes_ballast(request: dict[str, Any], setting: Setting, method: str) -> bool:
    return (
        setting.device.type == "cuda"
        and setting.limit_bytes is not None
        and method in methods.OWN_PROCESS
        and request["ballast_slack"] is not None
    )


def _incomparable(reference: records.Record, facts: records.Record) -> str | None:
    """Why runs of this process cannot be compared with that plain run; None if they can."""
    if reference["error"]:
        return "it failed"
    theirs, ours = reference["machine"], facts["machine"]
    if theirs and any(theirs[key] != ours[key] for key in ("gpu", "torch")):
        return "it ran on another machine or PyTorch"
    theirs, ours = reference["options"], facts["options"]
    # What the process and the limit are like does not change a plain run.
    defaults = asdict(StepOptions())  # records from before an option have none of it
    known = defaults.items()
    if theirs and any(theirs.get(key, usual) != ours.get(key, usual) for key, usual in known):
        return "it had other options"
    return None


def _facts(request: dict[str, Any]) -> records.Record:
    """The fields that all runs of this process share."""
    device = torch.device(request["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    link = measure_link(device)
    memory.release(device)
    commit, dirty = records.commit()
    options = asdict(StepOptions(**request["options"]))
    options["headroom"] = request["headroom"]
    options["plan_seconds"] = request["plan_seconds"]
    options["enable"] = request["enable"]
    options["alloc_conf"] = os.environ.get(
        "PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    )
    return {
        "machine": records.machine(device.type),
        "commit": commit,
        "commit_dirty": dirty,
        "options": options,
        "link_out": link[0] if link else None,
        "link_in": link[1] if link else None,
    }


def main(request_path: str) -> None:
    """Carry out a request."""
    request = json.loads(Path(request_path).read_text())
    if request["device"] is None:
        request["device"] = "cuda:0" if torch.cuda.is_available() else "cpu"
    options = StepOptions(**request["options"])
    request["options"]["attention"] = attention_of(request["step"], options)
    configure(request["step"], options)
    facts = _facts(request)
    reference = records.read(Path(request["reference"])) if request.get("reference") else None
    if reference is not None and (why := _incomparable(reference, facts)):
        print(f"  not compared with {request['reference']}: {why}", flush=True)
        reference = None
    for run in request["runs"]:
        record = _one(request, run, facts, reference)
        records.write(record, Path(run["out"]))
        if run["method"] == "plain" and not record["error"]:
            reference = record
        outcome = record["skipped"] or record["error"] or f"{record['step_ms']:.2f} ms"
        print(f"  {record['step']} {record['method']}: {outcome}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
