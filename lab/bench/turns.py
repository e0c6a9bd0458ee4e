"""What LMS adds to a step, measured in turns: on cores that others use too, one minute says little
about the next.

A process for each way of running the step (plain; under LMS, where all fits; planned at half of its
memory; these with another build of LMS) lives from the beginning to the end, all on the same cores,
and only one of them runs at a time: a few steps each, in rounds. What is compared is each round's
plain run with its neighbours.

    python lab/bench/turns.py --step bert_large_24x512 --ways plain fits planned \\
        --other build-before/lib/liblms_torch.so --out turns.json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records

WAYS = ("plain", "fits", "planned")


def waited_for_cores_ms() -> float:
    """How long the threads of this process have been ready to run, and had no core, in sum. What a
    hypervisor gives to others is in none of it."""
    waited = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            waited += int((task / "schedstat").read_text().split()[1])
    return waited / 1e6


def work(given: argparse.Namespace) -> None:
    """One way, in a process of its own: says "ready", and for every line it reads runs the steps
    and prints what they took."""
    import torch

    import torch_lms
    from bench import host, memory
    from bench.setting import Setting
    from bench.steps import StepOptions, configure

    device = torch.device(given.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    options = StepOptions(tiny=given.tiny, optimizer=given.optimizer)
    configure(given.step, options)
    setting = Setting(given.step, options, device, plan_seconds=given.plan_seconds)

    def one(step: Any) -> None:  # noqa: ANN401
        loss = step()
        if given.read_loss:
            loss.item()

    def serve(step: Any, **facts: Any) -> None:  # noqa: ANN401
        print(json.dumps({"ready": given.worker} | facts), flush=True)
        for _ in sys.stdin:
            before = dict(torch_lms.memory_stats()) if given.worker != "plain" else {}
            loop = host.python_loop_ms()
            host.synchronize(device)
            cpu, waited, laps = time.process_time(), waited_for_cores_ms(), []
            for _ in range(given.steps):
                start = time.perf_counter()
                one(step)
                laps.append((time.perf_counter() - start) * 1e3)
            host.synchronize(device)
            laps[-1] = (time.perf_counter() - start) * 1e3
            found = {
                "ms": sum(laps) / given.steps,
                # Where nothing waits for a step, it is only queued when the next one begins.
                "least_ms": min(laps) if given.read_loss else sum(laps) / given.steps,
                "cpu_ms": (time.process_time() - cpu) * 1e3 / given.steps,
                "waited_ms": (waited_for_cores_ms() - waited) / given.steps,
                "loop_ms": loop,
            }
            after = dict(torch_lms.memory_stats()) if before else {}
            names = ("operators", "remakes", "evictions", "page_ins", "plan.steps")
            found |= {n: (after[n] - before[n]) / given.steps for n in names if n in after}
            print(json.dumps(found), flush=True)

    if given.worker == "plain":
        step = setting.build()
        for _ in range(host.WARMUP):
            one(step)
        with memory.LiveBytes() as live:
            one(step)
        serve(step, peak=memory.read_peaks(device)["allocated_peak"] or live.peak)
        return
    planned = given.worker == "planned"
    limit = int(given.peak / given.ratio if planned else given.peak * host.FITS)
    with host.under_lms(torch_lms, setting, limit, enforced=planned):
        step = setting.build()
        for _ in range(host.WARMUP):
            one(step)
        if planned:
            host.settle(torch_lms, device, functools.partial(one, step))
        serve(step, predicted_ms=torch_lms.memory_stats()["plan.predicted_us"] / 1e3)
        del step


class Way:
    """A process that runs the step in one way."""

    def __init__(
        self, given: argparse.Namespace, way: str, library: Path | None, peak: int
    ) -> None:
        self.name = way + (" (other)" if library else "")
        command = [sys.executable, __file__, "--worker", way, "--step", given.step]
        command += ["--steps", str(given.steps), "--plan-seconds", str(given.plan_seconds)]
        command += ["--peak", str(peak)] + (["--tiny"] if given.tiny else [])
        command += ["--device", given.device] if given.device else []
        command += ["--optimizer", given.optimizer]
        command += ["--ratio", str(given.ratio)] + (["--read-loss"] if given.read_loss else [])
        env = dict(os.environ) | ({"LMS_LIBRARY": str(library.resolve())} if library else {})
        if library and given.other_python:
            paths = [str(given.other_python.resolve()), env.get("PYTHONPATH", "")]
            env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.rows: list[dict[str, Any]] = []
        self.facts = self._read()

    def _read(self) -> dict[str, Any]:
        for line in self._process.stdout or ():
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.name}: ended with {self._process.wait()}")

    def turn(self) -> None:
        """Runs the steps once."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.rows.append(self._read())

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def quickest_cores(count: int) -> list[int]:
    """Those on which a loop of Python takes least: some virtual cores share theirs with others'."""
    from bench import host

    times = {}
    for core in sorted(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, [core])
        times[core] = host.python_loop_ms()
    return sorted(sorted(times, key=lambda core: times[core])[:count])


def main(argv: list[str] | None = None) -> int:
    """Carry out the command line; the program's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", required=True)
    parser.add_argument("--ways", nargs="+", choices=WAYS[1:], default=WAYS[1:])
    parser.add_argument("--other", type=Path, help="another build of the library, to compare with")
    parser.add_argument("--other-python", type=Path, help="the Python package that goes with it")
    parser.add_argument("--ratio", type=float, default=2.0, help="of `planned`: the peak over it")
    parser.add_argument("--read-loss", action="store_true", help="in every step, as loops often do")
    parser.add_argument("--optimizer", default="default", help="fused, foreach or forloop")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8, help="in one turn")
    parser.add_argument("--cores", type=int, default=4, help="that all use")
    parser.add_argument("--plan-seconds", type=float, default=4.0)
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.worker:
        work(given)
        return 0
    cores = quickest_cores(given.cores)
    os.sched_setaffinity(0, cores)
    ways = [Way(given, "plain", None, 0)]
    try:
        peak = ways[0].facts["peak"]
        libraries = [None, given.other] if given.other else [None]
        ways += [Way(given, way, library, peak) for way in given.ways for library in libraries]
        for _ in range(given.rounds):
            for way in ways:
                way.turn()
    finally:
        for way in ways:
            way.end()
    report: dict[str, Any] = {}
    plain = ways[0].rows
    for way in ways:
        over = {
            key: [row[key] / base[key] - 1 for row, base in zip(way.rows, plain, strict=True)]
            for key in ("ms", "least_ms", "cpu_ms", "loop_ms")
        }
        medians = {key: statistics.median(row[key] for row in way.rows) for key in way.rows[0]}
        report[way.name] = (
            way.facts
            | medians
            | {f"{key}_over_plain": statistics.median(values) for key, values in over.items()}
        )
        report[way.name]["rows"] = way.rows
        print(
            f"{given.step} {way.name}: {medians['ms']:.1f} ms "
            f"({statistics.median(over['ms']):+.1%}; least {medians['least_ms']:.1f}, "
            f"{statistics.median(over['least_ms']):+.1%}), CPU {medians['cpu_ms']:.1f} ms "
            f"({statistics.median(over['cpu_ms']):+.1%}), for cores {medians['waited_ms']:.1f} ms, "
            f"loop of Python {medians['loop_ms']:.1f} ms; "
            f"predicted {way.facts.get('predicted_ms')}",
            flush=True,
        )
    if given.out:
        commit, dirty = records.commit()
        kind = "cpu" if (given.device or "").startswith("cpu") else "cuda"
        facts = {"step": given.step, "machine": records.machine(kind), "cores": given.cores}
        facts |= {"ratio": given.ratio, "read_loss": given.read_loss}
        facts |= {"optimizer": given.optimizer}
        facts |= {"commit": commit, "commit_dirty": dirty, "ways": report}
        records.write(facts, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
