"""Measurements of a user's own training step: in memory, under LMS, and with ``save_on_cpu``.

One process a try, and one JSON record each, of the schema ``lms-bench/1`` that ``lms bench``
writes and ``lms report`` draws (docs/studies.md).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from . import _settings

Step = Callable[[], Any]
Build = Callable[[int], Step]
Record = dict[str, Any]

METHODS = ("plain", "lms", "lms-swap", "save_on_cpu")

_LINK_BYTES = 256 * 2**20
_LONG_STEP = 3.0
_MOST_SPANS = 2000
_MOST_GAPS = 20


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
        again: make tries again that have a record. What failed is always made again.

    Returns:
        One record a try, in the order of ``sizes``, then ``methods``. Its ``outcome`` is ``"ok"``,
        ``"oom"`` (of the device), ``"host"``, ``"timeout"`` or ``"failed"``; nothing is raised for
        any of these.

    Raises:
        ValueError: an unknown method, or a bad amount.
        TypeError: ``build`` cannot be imported by a child process.
    """
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"{method!r} is none of the methods {', '.join(METHODS)}")
    if "<" in build.__qualname__:
        raise TypeError(
            f"build: {build.__qualname__} cannot be imported: define it at the top of a module"
        )
    where = _settings.parse_device(device)
    limit = None
    if cap is not None:
        limit = _settings.parse_bytes(cap, lambda: _settings.device_memory(where))
    records = []
    for size in sizes:
        for method in methods:
            path = Path(out) / study / series / f"{method}.{size}.json"
            known = None if again else _read(path)
            if known is not None and known["outcome"] != "failed":
                records.append(known)
                continue
            record: Record = {
                "schema": "lms-bench/1",
                "study": study,
                "series": series,
                "model": model or build.__name__,
                "batch": size,
                "sides": [],
                "classes": 0,
                "precision": precision,
                "method": method,
                "cap": limit or 0,
                "link_emulated": None,
                "outcome": "failed",
                "message": "",
                "samples": {"unit": "images", "per_step": float(size)},
                "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            if describe is not None:
                facts = dict(describe(size))
                samples = record["samples"]
                samples["unit"] = facts.pop("unit", samples["unit"])
                samples["per_step"] = float(facts.pop("per_step", samples["per_step"]))
                record.update(facts)
            task = {
                "size": size,
                "device": where,
                "warmup": warmup,
                "steps": steps,
                "settle": settle,
                "settle_seconds": settle_seconds,
                "plan_seconds": plan_seconds,
                "min_block": min_block,
                "host_limit": host_limit,
                "path": str(path),
            }
            records.append(_run_child(build, record, task, timeout))
    return records


def _read(path: Path) -> Record | None:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if record.get("schema") == "lms-bench/1" else None


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial.{os.getpid()}")
    partial.write_text(json.dumps(_finite(record), indent=1) + "\n")
    partial.replace(path)


def _finite(value: Any) -> Any:
    """JSON has no word for what is not finite: null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _run_child(build: Build, record: Record, task: dict[str, Any], timeout: float) -> Record:
    path = Path(task["path"])
    path.unlink(missing_ok=True)
    begin = time.monotonic()
    child = multiprocessing.get_context("spawn").Process(
        target=_child, args=(build, record, task), daemon=False
    )
    child.start()
    child.join(timeout)
    late = child.is_alive()
    if late:
        child.kill()
        child.join()
    done = _read(path)
    if done is None:
        done = dict(record)
        if late:
            done |= {"outcome": "timeout", "message": f"not done after {timeout:.0f} s"}
        elif child.exitcode == -9:
            done |= {"outcome": "host", "message": "killed by the system"}
        else:
            done["message"] = f"ended with status {child.exitcode}"
    done["wall"] = time.monotonic() - begin
    _write(path, done)
    return done


def _child(build: Build, record: Record, task: dict[str, Any]) -> None:
    """The whole of a try's process."""
    with contextlib.ExitStack() as stack:
        attempt = _Try(build, record, task, stack)
        try:
            attempt.run()
            record["outcome"] = "ok"
        except Exception as error:  # whatever it is, it belongs into the record
            record["message"] = f"{type(error).__name__}: {error}"[:500]
            record["outcome"] = _kind(error)
        with contextlib.suppress(Exception):
            attempt.add_peaks()
        _write(Path(task["path"]), record)
        # Bringing back what is absent could take long, or more memory than there is.
        os._exit(0)


def _kind(error: Exception) -> str:
    text = str(error)
    if isinstance(error, MemoryError) or "host arena" in text or "cudaHostRegister" in text:
        return "host"
    if "not enough memory: you tried to allocate" in text:
        return "host"
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text:
        return "oom"
    return "oom" if "ALLOC_FAILED" in text else "failed"


class _Counting(saved_tensors_hooks):
    """``save_on_cpu(pin_memory=True)`` that counts what it moves."""

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
        self._offload = _Counting(self._cuda) if record["method"] == "save_on_cpu" else None
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
        if self._cuda:
            with contextlib.suppress(RuntimeError):
                self._profile(step)

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
            if followed >= wanted or quiet > wanted:
                break
            late = time.monotonic() - begin + took > task["settle_seconds"]
            if count >= task["settle"] or late:
                self._record["message"] = f"not settled after {count} steps"
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
            "mean": statistics.fmean(rates),
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
                peak["host"] += stats["host.bytes.peak"]
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
        torch.cuda.reset_peak_memory_stats(self._device)
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
            **{kind: merged(each, _MOST_SPANS) for kind, each in spans.items()},
            "gaps": longest_gaps(named),
        }


def merged(
    spans: Iterable[tuple[float, float]], most: int | None = None
) -> list[tuple[float, float]]:
    """Spans in order, merged where they touch; then the closest, until there are ``most``."""

    def join(ordered: list[tuple[float, float]], apart: float) -> list[tuple[float, float]]:
        joined: list[tuple[float, float]] = []
        for begin, end in ordered:
            if joined and begin - joined[-1][1] <= apart:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((begin, end))
        return joined

    ordered = join(sorted(spans), 0.0)
    if most is None or len(ordered) <= most:
        return ordered
    gaps = sorted(after[0] - before[1] for before, after in zip(ordered, ordered[1:], strict=False))
    return join(ordered, gaps[len(gaps) - most])


def longest_gaps(kernels: Iterable[tuple[float, float, str]]) -> list[dict[str, Any]]:
    """Where no kernel ran, the longest first, with the kernel that ended it."""
    gaps, end = [], None
    for begin, until, name in sorted(kernels):
        if end is not None and begin > end:
            gaps.append({"at": end, "for": begin - end, "before": name[:120]})
        end = until if end is None else max(end, until)
    return sorted(gaps, key=lambda gap: -gap["for"])[:_MOST_GAPS]
