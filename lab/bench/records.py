"""The JSON object that each run leaves behind: its fields, and the facts that do not change."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Record = dict[str, Any]

# Every record has all of these; null is "not known" or "does not apply". Bytes are bytes, times
# milliseconds, rates bytes per second; overheads are fractions: 0.05 is 5 %.
FIELDS: dict[str, str] = {
    "schema": "version of this layout",
    "time": "when the run ended (UTC)",
    "step": "the training step that ran",
    "method": "how it was made to fit",
    "machine": "GPU, driver, processor, memory, versions",
    "commit": "revision of this repository",
    "commit_dirty": "whether tracked files differed from it",
    "options": "what was varied about the step and the process",
    "ratio": "peak in memory over the limit (or, without a limit, over the method's own peak)",
    "limit_bytes": "the budget of device memory",
    "fraction_bytes": "the most the caching allocator could reserve, if that was enforced",
    "allocated_peak": "most bytes allocated on the device (planned: in the timed steps)",
    "allocated_of_limit": "allocated_peak / limit_bytes",
    "reserved_peak": "most bytes the allocators held (planned: in the timed steps)",
    "reserved_of_limit": "reserved_peak / limit_bytes",
    "reserved_peak_warmup": "planned runs: the same before the timed steps",
    "ballast_bytes": "device memory taken by the harness, so that the limit cannot be passed",
    "ballast_slack_bytes": "what it left free beside the limit, for kernels' code and the driver",
    "device_used_before": "in use on the device, by the context, before the ballast and the model",
    "device_used_peak": "most in use on the device but the ballast, after any step",
    "host_peak": "most bytes held on the host for the device",
    "file_peak": "most bytes held in files",
    "process_peak": "most resident memory of the process, of all its runs until then",
    "in_memory_ms": "median step of the plain run it is compared with",
    "step_ms": "median of the timed steps; of a loop whose steps differ, their mean",
    "step_ms_all": "all timed steps",
    "overhead": "step_ms / in_memory_ms - 1 (lms-fits: median over alternating pairs)",
    "over_reactive": "step_ms / step_ms of the reactive run at the same limit",
    "pair_ratios": "lms-fits: the ratio of each pair of blocks of steps",
    "warmup_ms": "planned runs: the steps before the timed ones, from the first on",
    "planned": "planned runs: whether a plan was made",
    "plan_steps": "how many of the timed steps were carried out under a plan, from end to end",
    "divergences": "how often a step turned out to be another than planned, in the timed steps",
    "refused": "blocks that a plan drops, and that nobody knows how to compute, in the timed steps",
    "failed": "recomputations that failed, in the timed steps",
    "misplaced": "blocks that did not get their planned address, in the timed steps",
    "predicted_ms": "the step time that the plan promised",
    "predicted_overhead": "predicted_ms / in_memory_ms - 1",
    "bound_overhead": "what no plan could beat that only copies",
    "bound_recompute_overhead": "what no plan could beat that copies and recomputes",
    "plan_peak": "the peak of allocated bytes that the plan promised",
    "plan_arena": "bytes of arena that the plan's addresses take",
    "plan_arena_bound": "what no placement of that plan could beat",
    "phases": "lms-recording: its steps by phase of planning (`lab/bench/recording.py`); "
    "`over_off`: overhead over those without plans beside them",
    "bytes_out": "device to host, per step",
    "bytes_in": "host to device, per step",
    "bytes_recomputed": "made again instead of being copied, per step",
    "drops": "blocks dropped, to be computed again, per step",
    "remakes": "blocks computed again, per step",
    "link_out": "measured rate device to host",
    "link_in": "measured rate host to device",
    "link_floor_ms": "in_memory_ms + bytes_out / link_out + bytes_in / link_in",
    "over_floor": "step_ms / link_floor_ms",
    "losses": "of all steps from the first on, hexadecimal",
    "weights": "fingerprints (`lab/bench/weights.py`) by the number of steps done: of plain runs "
    "after each, of planned ones after the last",
    "losses_compared": "how many of them were compared with the plain run's",
    "bit_identical": "whether those were equal; null if the plain run does not repeat itself",
    "weights_equal": "whether its weights are the plain run's after as many steps; null likewise, "
    "or if the plain run had fewer",
    "plain_deterministic": "whether two plain runs had equal losses and weights",
    "stats": "the engine's own statistics at the end of the timed steps",
    "host": "method host: what a step costs the host (`lab/bench/host.py`), by what ran: `plain`, "
    "`fits`, `planned`, each free-running and with the loss read in every step",
    "skipped": "what is missing for this step",
    "error": "why there is no result",
}


def empty(step: str, method: str) -> Record:
    """A record with every field, nothing known but what ran."""
    record: Record = dict.fromkeys(FIELDS)
    record.update(schema=2, step=step, method=method)
    return record


def finish(record: Record) -> Record:
    """Fill in the fields that follow from others, and the time."""
    base, step = record["in_memory_ms"], record["step_ms"]
    if base and step and record["overhead"] is None:
        record["overhead"] = step / base - 1
    if base and record["predicted_ms"]:
        record["predicted_overhead"] = record["predicted_ms"] / base - 1
    for kind in ("allocated", "reserved"):
        if record["limit_bytes"] and record[f"{kind}_peak"]:
            record[f"{kind}_of_limit"] = record[f"{kind}_peak"] / record["limit_bytes"]
    moved = (record["bytes_out"], record["bytes_in"])
    links = (record["link_out"], record["link_in"])
    if base and None not in (*moved, *links):
        copies = sum(size / rate for size, rate in zip(moved, links, strict=True))
        record["link_floor_ms"] = base + copies * 1e3
        if step:
            record["over_floor"] = step / record["link_floor_ms"]
    record["time"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return record


def compare(record: Record, reference: Record | None) -> None:
    """Set `bit_identical` and `weights_equal` from the steps that `record` and the plain run
    `reference` share."""
    if reference is None or not reference["losses"] or not record["losses"]:
        return
    record["plain_deterministic"] = reference["plain_deterministic"]
    count = min(len(record["losses"]), len(reference["losses"]))
    expected = reference["losses"][:count]
    record["losses_compared"] = count
    # Infinities and NaNs compare equal whatever the weights are.
    finite = all(math.isfinite(float.fromhex(loss)) for loss in expected)
    if not (reference["plain_deterministic"] and finite):
        return
    record["bit_identical"] = record["losses"][:count] == expected
    # JSON has no numbers for keys.
    ours, theirs = (
        {int(steps): text for steps, text in (each["weights"] or {}).items()}
        for each in (record, reference)
    )
    shared = ours.keys() & theirs.keys()
    if shared:
        record["weights_equal"] = all(ours[steps] == theirs[steps] for steps in shared)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> tuple[str, bool | None]:
    """This repository's revision and whether its tracked files differ from it.

    Without git: from the variable LMS_COMMIT, or a file `.commit` in the root (not known: dirty).
    """
    given = os.environ.get("LMS_COMMIT")
    if given:
        return given, None
    try:
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "-uno"))
    except (OSError, subprocess.CalledProcessError):
        pass
    file = ROOT / ".commit"
    return (file.read_text().strip() if file.exists() else "unknown"), None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    try:
        facts = Path("/proc/driver/nvidia/version").read_text()
        found = re.search(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s", facts)
        if found:
            return found[1]
    except OSError:
        pass
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        out = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
        return out.splitlines()[0].strip()
    except (OSError, IndexError, subprocess.SubprocessError):
        return None


def machine(device_type: str) -> dict[str, Any]:
    """What the run ran on."""
    import torch  # the driver process reads and prints records without it

    cuda = device_type == "cuda"
    properties = torch.cuda.get_device_properties(0) if cuda else None
    return {
        "gpu": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "driver": _driver() if cuda else None,
        "cpu": _processor(),
        "cpus": os.cpu_count(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "python": platform.python_version(),
    }


def write(record: Record, path: Path) -> None:
    """Write a record; a file that exists is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)


def read(path: Path) -> Record:
    """A record from its file; fields that came into use after it was written are null."""
    return dict.fromkeys(FIELDS) | json.loads(path.read_text())


def read_files(directory: Path) -> dict[Path, Record]:
    """The records in a directory, by file name; other JSON files are passed over."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and {"schema", "step", "method"} <= content.keys():
            found[path] = read(path)
    return found


def read_all(directory: Path) -> list[Record]:
    """The same without the files."""
    return list(read_files(directory).values())
