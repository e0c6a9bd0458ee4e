"""Where the host's time goes in a step: plain, under LMS where all fits, and planned.

    cmake --build build --target lms_host_probe
    python lab/bench/host_profile.py --step bert_large_24x512 --out out/profile

A library that is preloaded (`lab/bench/host_probe.cpp`) samples the call stacks of all threads
by the processor time that they take, and counts the calls of the CUDA runtime. Leaves
STEP.profile.json in the folder, and prints: calls a step; time by what LMS was about, and whose
function was innermost; by the library of the innermost function; by the innermost functions; and
below LMS, by its innermost function. Times are milliseconds of processor time a step.
"""

from __future__ import annotations

import argparse
import bisect
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROOT = Path(__file__).resolve().parents[2]
PROBE = "liblms_host_probe.so"
OURS = "liblms_torch"


class Symbols:
    """Names of the functions of one library, by address."""

    def __init__(self, file: str) -> None:
        self.starts: list[int] = []
        self.names: list[str] = []
        self._ends: list[int] = []
        found: dict[int, tuple[int, str]] = {}
        for tables in ([], ["--dynamic"]):  # the first knows more, if it is there
            command = ["nm", "--defined-only", "-S", *tables, file]
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            for match in re.finditer(r"^([0-9a-f]+) ([0-9a-f]+) [tTwWiVu] (.*)$", text, re.M):
                found[int(match[1], 16)] = (int(match[2], 16), match[3])
            if found:
                break
        for start, (size, name) in sorted(found.items()):
            self.starts.append(start)
            self._ends.append(start + size)
            self.names.append(name)

    def name(self, address: int) -> str | None:
        """Of the function that has this address (relative to the library's), if one is known."""
        index = bisect.bisect_right(self.starts, address) - 1
        return self.names[index] if index >= 0 and address < self._ends[index] else None


def _demangled(names: Iterable[str]) -> dict[str, str]:
    """By mangled name."""
    given = list(names)
    done = subprocess.run(
        ["c++filt"], input="\n".join(given), capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return dict(zip(given, done, strict=True)) if len(given) == len(done) else {}


class Map:
    """What is mapped where in the process that was sampled."""

    def __init__(self, lines: list[str]) -> None:
        self._ranges = []
        for line in lines:
            fields = line.split(maxsplit=5)
            start, end = (int(text, 16) for text in fields[0].split("-"))
            file = fields[5] if len(fields) > 5 else "(no file)"
            self._ranges.append((start, end, int(fields[2], 16), file))
        self._ranges.sort()
        self._symbols: dict[str, Symbols] = {}
        self._shifts: dict[str, list[tuple[int, int, int]]] = {}
        self._known: dict[int, tuple[str, str]] = {}

    def _shift(self, file: str, offset: int) -> int:
        """Addresses of a file's code lie this far above their place in the file."""
        if file not in self._shifts:
            command = ["readelf", "-lW", file]
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            pattern = r"LOAD\s+0x([0-9a-f]+)\s+0x([0-9a-f]+)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)"
            self._shifts[file] = [
                (int(m[1], 16), int(m[2], 16), int(m[3], 16)) for m in re.finditer(pattern, text)
            ]
        for place, address, size in self._shifts[file]:
            if place <= offset < place + size:
                return address - place
        return 0

    def find(self, address: int) -> tuple[str, str]:
        """The library and the function that an address lies in."""
        if address not in self._known:
            self._known[address] = self._find(address)
        return self._known[address]

    def _find(self, address: int) -> tuple[str, str]:
        index = bisect.bisect_right(self._ranges, (address, 1 << 64)) - 1
        if index < 0 or address >= self._ranges[index][1]:
            return "?", "?"
        start, _, offset, file = self._ranges[index]
        library = re.sub(r"\.so[.0-9]*$", "", Path(file).name)
        if not file.startswith("/"):
            return library, library
        place = address - start + offset
        if file not in self._symbols:
            self._symbols[file] = Symbols(file)
        name = self._symbols[file].name(place + self._shift(file, place))
        return library, name or f"({library})"


def _short(name: str) -> str:
    name = re.sub(r"\(anonymous namespace\)::", "", name)
    while re.search(r"<[^<>]*>", name):
        name = re.sub(r"<[^<>]*>", "", name)
    return re.sub(r"\(.*", "", name)[:90] or name[:90]


def _nearest_ours(frames: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The innermost function of LMS's, and where it went from there."""
    for index, (library, name) in enumerate(frames):
        if library == OURS:
            return (f"→ {frames[index - 1][0]}" if index else "itself"), name
    return None


# What LMS is about, by any function of its on the stack; the first counts.
CAUSES = (
    ("computed again", "Lineages::(run|remake)|torch::run_call"),
    ("updates that waited", "Deferred::run_one"),
    ("updates put off, and looked for", "Deferred::|torch::(put_off|run_needed)"),
    ("lists in parts", "run_in_chunks|run_parts"),
    ("memory taken", "BridgeAllocator::"),
    ("memory let go", "::delete_(in_arena|absent|allocated)"),
    ("a plan's orders", "Pilot::(carry_out|begin|act)|cuda::Lane::"),
)
# Where the hook calls PyTorch's kernel.
CALLS = "TypedCall|torch::(run_boxed|run_nested|call)"


def _cause(frames: list[tuple[str, str]]) -> str:
    ours = [_short(name) for library, name in frames if library == OURS]
    if not ours:
        return "beside LMS"
    for cause, pattern in CAUSES:
        if any(re.search(pattern, name) for name in ours):
            return cause
    below = frames[0][0] != OURS and re.search(CALLS, ours[0])
    return "kernels under the hook" if below else "the hook"


def summary(found: dict[str, Any], steps: int) -> dict[str, Any]:
    """What the samples say, in milliseconds a step, and calls a step."""
    where = Map(found["maps"])
    leaves, libraries, ours, threads, causes = (Counter() for _ in range(5))
    # An address of a caller is that of what comes after the call.
    places = [
        [where.find(at - (i > 0)) for i, at in enumerate(sample[2:])] for sample in found["samples"]
    ]
    plain = _demangled({name for frames in places for _, name in frames})
    for (thread, cpu_ns, *_), mangled in zip(found["samples"], places, strict=True):
        frames = [(library, plain.get(name, name)) for library, name in mangled]
        library, name = frames[0]
        if name == f"({library})":  # no symbol: who called the library
            called = next((frame for frame in frames if frame[1] != name), None)
            name = f"{name} from {_short(called[1])}" if called else name
        leaves[library, name] += cpu_ns
        libraries[library] += cpu_ns
        threads[str(thread)] += cpu_ns
        causes[f"{_cause(frames)} [{'ours' if library == OURS else 'others'}]"] += cpu_ns
        if nearest := _nearest_ours(frames):
            ours[nearest] += cpu_ns

    def per_step(counted: Counter[Any], most: int) -> dict[str, float]:
        named: Counter[str] = Counter()
        for key, count in counted.items():
            if isinstance(key, tuple):
                key = f"{_short(key[1])} [{key[0]}]"
            named[key] += count
        return {
            name: round(count / 1e6 / steps, 3) for name, count in named.most_common(most)
        }

    return {
        "samples": len(found["samples"]),
        "ms_by_cause": per_step(causes, 40),
        "ms_by_library": per_step(libraries, 20),
        "ms_by_function": per_step(leaves, 40),
        "ms_by_innermost_of_ours": per_step(ours, 40),
        "ms_by_thread": per_step(threads, 8),
        "calls": {
            call["name"]: {
                "a_step": round(call["count"] / steps, 1),
                "ms_a_step": round(call["ns"] / 1e6 / steps, 3),
            }
            for call in sorted(found["calls"], key=lambda call: -call["ns"])
        },
    }


class Probe:
    """The preloaded library."""

    def __init__(self, rate: int) -> None:
        self._library = ctypes.CDLL(None)
        self.rate = rate

    def profile(self, step: Any, steps: int, synchronize: Any) -> dict[str, Any]:
        """What `steps` steps do, free-running; calls and samples apart, since sampling costs."""
        parts = []
        for rate in (0, self.rate):
            synchronize()
            self._library.lms_probe_start(rate)
            for _ in range(steps):
                step()
            synchronize()
            self._library.lms_probe_stop()
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                if self._library.lms_probe_write(file.name.encode()) != 0:
                    raise RuntimeError(f"the probe could not write {file.name}")
                parts.append(json.loads(Path(file.name).read_text()))
        return summary(parts[1] | {"calls": parts[0]["calls"]}, steps)


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    from bench import host, memory, methods, records
    from bench.setting import Setting
    from bench.step import StepOptions
    from bench.steps import configure, package

    device = torch.device(arguments.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    options = StepOptions(tiny=arguments.tiny)
    configure(arguments.step, options)
    setting = Setting(
        step=arguments.step,
        options=options,
        device=device,
        min_block="4KiB" if arguments.tiny else None,
        plan_seconds=arguments.plan_seconds,
    )
    lms, probe = package(), Probe(arguments.rate)
    commit, dirty = records.commit()
    found: dict[str, Any] = {
        "profile_of": arguments.step,
        "machine": records.machine(device.type),
        "commit": commit,
        "commit_dirty": dirty,
        "steps": arguments.steps,
        "python_loop_ms": host.python_loop_ms(),
        "runs": {},
    }

    def run(name: str, prepare: Any) -> None:
        step = setting.build()
        prepare(step)
        found["runs"][name] = probe.profile(step, arguments.steps, lambda: host.synchronize(device))

    def warm(step: Any) -> None:
        for _ in range(host.WARMUP):
            step()

    run("plain", warm)
    peak = methods.peaks(setting.build(), device)["allocated_peak"]
    memory.release(device)
    if "fits" in arguments.runs:
        with host.under_lms(lms, setting, int(peak * host.FITS), enforced=False):
            run("fits", warm)
            memory.release(device)
    with host.under_lms(lms, setting, int(peak / host.RATIO), enforced=True):
        run("planned", lambda step: host.settle(lms, device, step))
        found["predicted_ms"] = lms.memory_stats()["plan.predicted_us"] / 1e3
    return found


def _print(found: dict[str, Any]) -> None:
    runs = found["runs"]
    print(f"\n{found['profile_of']}, loop of Python {found['python_loop_ms']:.1f} ms")
    tables = (
        ("calls of CUDA a step (ms)", None, 24),
        ("by what LMS was about", "ms_by_cause", 24),
        ("by library", "ms_by_library", 16),
        ("by function", "ms_by_function", 30),
        ("LMS's innermost function → where to", "ms_by_innermost_of_ours", 36),
        ("by thread", "ms_by_thread", 6),
    )
    for title, key, most in tables:
        names: Counter[str] = Counter()
        cells: dict[tuple[str, str], str] = {}
        for run, content in runs.items():
            for name, value in content[key or "calls"].items():
                ms = value if key else value["ms_a_step"]
                text = f"{ms:.2f}" if key else f"{value['a_step']:.0f} ({ms:.2f})"
                cells[name, run] = text
                names[name] = max(names[name], ms)
        print(f"\n| {title} | {' | '.join(runs)} |\n| --- |{' ---: |' * len(runs)}")
        for name, _ in names.most_common(most):
            print(f"| {name} | {' | '.join(cells.get((name, run), '–') for run in runs)} |")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", required=True)
    parser.add_argument("--runs", default="fits,planned", help="beside the plain one")
    parser.add_argument("--out", type=Path, default=ROOT / "out")
    parser.add_argument("--probe", type=Path, default=ROOT / "build/lib" / PROBE)
    parser.add_argument("--rate", type=int, default=997, help="samples a second of processor time")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plan-seconds", type=float, default=3.0)
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Carry out the command line, in a process that has the probe."""
    arguments = _arguments(argv)
    if not arguments.probe.exists():
        print(f"no {arguments.probe}: build lms_host_probe", file=sys.stderr)
        return 1
    preloaded = os.environ.get("LD_PRELOAD", "")
    if PROBE not in preloaded:
        probe = str(arguments.probe.resolve())
        environment = {**os.environ, "LD_PRELOAD": f"{probe} {preloaded}".strip()}
        command = [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv)]
        return subprocess.run(command, env=environment, check=False).returncode
    found = _measure(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / f"{arguments.step}.profile.json"
    file.write_text(json.dumps(found, indent=1) + "\n")
    _print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
