"""One try of ``torch_lms.bench``, in a process of its own: builds, warms up, measures, records."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from ._bench_record import Build, Record, Step, write_record
from ._bench_timeline import MOST_SPANS, longest_gaps, merged

_LINK_BYTES = 256 * 2**20
_LONG_STEP = 3.0


def run_try(build: Build, record: Record, task: dict[str, Any]) -> None:
    """The whole of a try's process: writes ``record``, however it ends, to ``task["path"]``."""
    _end_with_parent()
    path = Path(task["path"])
    with contextlib.ExitStack() as stack:
        attempt = _Try(build, record, task, stack)
        try:
            attempt.run()
            record["outcome"] = "ok"
            # Kept, whatever becomes of the process in what is told besides.
            write_record(path, record | {"partial": True})
            attempt.look_closer()
        except Exception as error:  # whatever it is, it belongs into the record
            text = f"{type(error).__name__}: {error}"[:500]
            record["message"] = "; ".join(filter(None, (record["message"], text)))
            record["outcome"] = _outcome(error)
            if need := _need(error):
                record["outcome"] = "host" if need["full"] == "below" else "oom"
                if need["operator"]:
                    record["need"] = {
                        "operator": need["operator"],
                        "bytes": int(need["bytes"]),
                        "least_limit": int(need["least_limit"]),
                    }
        with contextlib.suppress(Exception):
            attempt.add_peaks()
        write_record(path, record)
        sys.stdout.flush()
        sys.stderr.flush()
        # Bringing back what is absent could take long, or more memory than there is.
        os._exit(0)


def _end_with_parent() -> None:
    """A parent that is killed takes this process with it, rather than leave it on the device."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="lms-bench-parent", daemon=True).start()


def _need(error: Exception) -> dict[str, str]:
    """What an error of LMS is about; empty of any other."""
    try:
        return dict(torch.ops.lms.need_of(str(error)))
    except AttributeError:  # LMS is not loaded in a try without it
        return {}


def _outcome(error: Exception) -> str:
    """Which memory an error of PyTorch is about: of some, only the words tell."""
    text = str(error)
    of_host = ("cudaHostRegister", "not enough memory: you tried to allocate")
    if isinstance(error, MemoryError) or any(part in text for part in of_host):
        return "host"
    if isinstance(error, torch.OutOfMemoryError):
        return "oom"
    return "oom" if "out of memory" in text or "ALLOC_FAILED" in text else "failed"


class CountingOffload(saved_tensors_hooks):
    """``save_on_cpu`` that counts what it moves."""

    def __init__(self, pin: bool) -> None:
        self.to_host = self.to_device = 0
        offload = save_on_cpu(pin_memory=pin)

        def pack(tensor: torch.Tensor) -> Any:
            self.to_host += tensor.nbytes
            return offload.pack_hook(tensor)

        def unpack(packed: Any) -> torch.Tensor:
            tensor = offload.unpack_hook(packed)
            self.to_device += tensor.nbytes
            return tensor

        super().__init__(pack, unpack)


class _Try:
    def __init__(
        self, build: Build, record: Record, task: dict[str, Any], stack: contextlib.ExitStack
    ) -> None:
        self._build, self._record, self._task, self._stack = build, record, task, stack
        self._device = torch.device(task["device"])
        self._cuda = self._device.type == "cuda"
        self._lms = record["method"].startswith("lms")
        self._offload = CountingOffload(self._cuda) if record["method"] == "save_on_cpu" else None
        self._losses: list[float] = []

    def run(self) -> None:
        record, task = self._record, self._task
        record["machine"] = self._machine()
        if self._cuda:
            torch.cuda.set_device(self._device)
            record["link"] = self._link()
            if record["cap"]:
                total = torch.cuda.get_device_properties(self._device).total_memory
                share = min(1.0, (record["cap"] + 0.5) / total)
                torch.cuda.set_per_process_memory_fraction(share, self._device)
        if self._lms:
            self._enable()
        step = self._build(task["size"])
        if self._lms:
            self._settle(step)
        else:
            for _ in range(task["warmup"]):
                self._step(step)
        self._measure(step)
        self._built = step

    def look_closer(self) -> None:
        """What is nice to know besides: none of it makes the try fail."""
        if not self._cuda:
            return
        try:
            self._profile(self._built)
        except Exception as error:
            self._note(f"no timeline: {type(error).__name__}: {error}"[:300])

    def _note(self, text: str) -> None:
        self._record["message"] = "; ".join(filter(None, (self._record["message"], text)))

    def _enable(self) -> None:
        import torch_lms

        extra = {
            key: self._task[key]
            for key in ("min_block", "host_limit")
            if self._task[key] is not None
        }
        if self._record["method"] == "lms-swap":
            extra["recompute"] = False
        torch_lms.enable(
            limit=self._record["cap"] or None,
            device=self._task["device"],
            plan_seconds=self._task["plan_seconds"],
            plan_cache="off",
            **extra,
        )
        self._record["limit"] = torch_lms.get_limit(self._task["device"])

    def _stats(self) -> dict[str, int]:
        import torch_lms

        return dict(torch_lms.memory_stats(self._task["device"]))

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def _step(self, step: Step) -> float:
        self._wait()
        begin = time.perf_counter()
        with self._offload or contextlib.nullcontext():
            loss = step()
        self._wait()
        took = time.perf_counter() - begin
        if loss is not None:
            self._losses.append(float(loss))
        return took

    def _settle(self, step: Step) -> None:
        """Steps until some followed a plan that was made with the times of planned ones; or until
        nothing moves, for all fits."""
        import torch_lms

        task = self._task
        begin, before = time.monotonic(), self._stats()
        followed = quiet = count = 0
        while True:
            took = self._step(step)
            count += 1
            now = self._stats()
            grown = {key: now[key] - before.get(key, 0) for key in now}
            planned = grown["plan.steps"] > 0 and grown["plan.divergences"] == 0
            moved = any(grown[key] for key in ("evictions", "drops", "page_ins"))
            followed = followed + 1 if planned and now["plan.refined"] else 0
            quiet = quiet + 1 if not moved and now["plan.shapes"] else 0
            wanted = 1 if took > _LONG_STEP else max(1, task["warmup"])
            if (followed >= wanted and not now["plan.on_trial"]) or quiet > wanted:
                break
            late = time.monotonic() - begin + took > task["settle_seconds"]
            if count >= task["settle"] or late:
                self._note(f"not settled after {count} steps")
                break
            if now["plan.shapes"]:
                torch_lms.wait_for_plan(task["device"])
            before = now
        self._record["warmup"] = count

    def _measure(self, step: Step) -> None:
        record, task = self._record, self._task
        record.setdefault("warmup", task["warmup"])
        before = self._stats() if self._lms else {}
        if self._offload:
            self._offload.to_host = self._offload.to_device = 0
        times = [self._step(step) for _ in range(task["steps"])]
        record["steps"] = times
        rates = [record["samples"]["per_step"] / each for each in times]
        median = statistics.median(rates)
        record["rate"] = {
            # All samples by all the time: the mean of the rates would weigh fast steps more.
            "mean": record["samples"]["per_step"] * len(times) / sum(times),
            "median": median,
            "spread": (max(rates) - min(rates)) / median if median else 0.0,
        }
        record["losses"] = list(self._losses)
        moved = (0, 0)
        if self._lms:
            now = self._stats()
            moved = tuple(
                (now[key] - before[key]) // len(times) for key in ("bytes_out", "bytes_in")
            )
            record["allocations"] = {
                key: now[f"alloc.{key}"] - before[f"alloc.{key}"]
                for key in ("freelist", "driver", "reclaim", "retry")
            }
            if now["plan.planned"]:
                record["predicted"] = now["plan.predicted_us"] * 1e-6
            record["stats"] = now
            if left := now["plan.divergences"] - before["plan.divergences"]:
                self._note(f"{left} times the timed steps left the plan")
        elif self._offload:
            moved = (
                self._offload.to_host // len(times),
                self._offload.to_device // len(times),
            )
        record["bytes"] = {"to_host": moved[0], "to_device": moved[1]}
        link, seconds = record.get("link"), statistics.median(times)
        if link and seconds:
            link["to_host_use"] = moved[0] / seconds / link["to_host_rate"]
            link["to_device_use"] = moved[1] / seconds / link["to_device_rate"]
        self.add_peaks()

    def add_peaks(self) -> None:
        """Also of a try that failed on its way."""
        if "peak" in self._record:
            return
        peak: dict[str, int] = {}
        if self._cuda:
            peak["allocated"] = torch.cuda.max_memory_allocated(self._device)
            peak["reserved"] = torch.cuda.max_memory_reserved(self._device)
            peak["host"] = int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))
        else:
            peak["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self._lms:
            stats = self._stats()
            peak.setdefault("allocated", stats["device.bytes.peak"])
            if self._cuda:
                # Pinned memory is the host's to miss, whether there is something in it or not.
                peak["host"] += max(stats["host.bytes.peak"], stats.get("host.bytes.reserved", 0))
        self._record["peak"] = peak

    def _machine(self) -> dict[str, str]:
        gpu = torch.cuda.get_device_name(self._device) if self._cuda else "none"
        return {
            "gpu": gpu,
            "host": platform.processor() or platform.machine(),
            "pytorch": torch.__version__,
            "python": platform.python_version(),
        }

    def _link(self) -> dict[str, float]:
        host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=self._device)

        def best(to: torch.Tensor, source: torch.Tensor) -> float:
            times = []
            for _ in range(6):
                self._wait()
                begin = time.perf_counter()
                to.copy_(source, non_blocking=True)
                self._wait()
                times.append(time.perf_counter() - begin)
            return _LINK_BYTES / min(times)

        rates = {"to_host_rate": best(host, there), "to_device_rate": best(there, host)}
        del host, there
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_memory_stats(self._device)
        torch.cuda.reset_peak_host_memory_stats()
        return rates

    def _profile(self, step: Step) -> None:
        """One more step, of which the device's work is drawn on a timeline."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            seconds = self._step(step)
        results = profiler.profiler.kineto_results
        spans: dict[str, list[tuple[float, float]]] = {
            "kernels": [],
            "to_host": [],
            "to_device": [],
        }
        named = []
        events = [
            event
            for event in results.events()
            if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns() > 0
        ]
        if not events:
            return
        origin = min(event.start_ns() for event in events)
        for event in events:
            begin = (event.start_ns() - origin) * 1e-9
            span = (begin, begin + event.duration_ns() * 1e-9)
            name = event.name()
            kind = "to_host" if "Memcpy DtoH" in name else "kernels"
            kind = "to_device" if "Memcpy HtoD" in name else kind
            spans[kind].append(span)
            if kind == "kernels":
                named.append((*span, name))
        kernels = merged(spans["kernels"])
        self._record["gpu_busy"] = sum(end - begin for begin, end in kernels) / seconds
        self._record["timeline"] = {
            "step": seconds,
            **{kind: merged(each, MOST_SPANS) for kind, each in spans.items()},
            "gaps": longest_gaps(named),
        }
