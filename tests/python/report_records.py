"""Made-up records of all studies and outcomes, for tests of `lms report`; nothing was measured."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

GIB = 2**30
CAP = 16 * GIB
MACHINE = {"gpu": "Made-up GPU", "host": "Made-up CPU", "pytorch": "0.0"}


NO_ROOM = (
    "LMS: out of memory on cuda:0: operator aten::convolution_backward needs at least 17.1 GiB "
    "(18360985190 bytes) on the device at once. The limit is 16.0 GiB; the smallest limit that "
    "could work here is 17.4 GiB (18683107737 bytes). Nothing was lost."
)
NEED = {
    "operator": "aten::convolution_backward",
    "bytes": 18360985190,
    "least_limit": 18683107737,
}


def timeline(step: float, seed: int) -> dict[str, Any]:
    """Kernels with gaps, and copies beside them."""
    random_ = random.Random(seed)
    kernels: list[list[float]] = []
    gaps: list[dict[str, Any]] = []
    now = 0.0
    while now < step * 0.995:
        length = step * random_.uniform(0.002, 0.02)
        kernels.append([now, min(now + length, step)])
        now += length
        idle = step * random_.choice([0.0001, 0.0002, 0.001, 0.01])
        if idle > step * 0.005 and now + idle < step:
            name = f"void made_up::kernel<{len(gaps)}, float>"
            gaps.append({"at": now, "for": idle, "before": name})
        now += idle
    out = [[step * t, step * (t + 0.016)] for t in (i / 40 for i in range(20))]
    into = [[step * t, step * (t + 0.018)] for t in (i / 40 for i in range(19, 39))]
    return {
        "step": step,
        "kernels": kernels,
        "to_host": out,
        "to_device": into,
        "gaps": sorted(gaps, key=lambda gap: -gap["for"])[:20],
    }


class Maker:
    """Writes one study's records below `folder`."""

    def __init__(self, folder: Path, study: str, model: str, unit: str, dims: int, peak: float):
        self.folder, self.study, self.model = folder, study, model
        self.unit, self.dims, self.peak = unit, dims, peak
        self.count = 0

    def run(
        self,
        series: str,
        method: str,
        batch: int,
        side: int,
        rate: float,
        outcome: str = "ok",
        link: str | None = None,
        cap: int = CAP,
        memory: float = 1.0,
        **more: Any,
    ) -> dict[str, Any]:
        self.count += 1
        pixels = batch * side**self.dims
        per_step = batch if self.unit == "images" else pixels / 1e6
        record: dict[str, Any] = {
            "schema": "lms-bench/1",
            "study": self.study,
            "series": series,
            "model": self.model,
            "batch": batch,
            "sides": [side] * self.dims,
            "classes": 15,
            "precision": "fp16" if self.study == "B6" else "fp32",
            "method": method,
            "cap": cap,
            "settings": {"slack": str(2 * GIB)},
            "link_emulated": link,
            "outcome": outcome,
            "samples": {"unit": self.unit, "per_step": per_step},
            "warmup": 3,
            "machine": MACHINE,
            "commit": "0123456789abcdef",
            "date": "2026-01-0" + str(1 + self.count % 3),
        }
        if outcome == "ok":
            record |= self._measured(method, per_step / rate, rate, cap, memory)
        else:
            record["message"] = {
                "oom": "CUDA out of memory. Tried to allocate 5.36 GiB.",
                "host": "The host has 128.0 GiB; this needs 171.2 GiB.",
                "timeout": "Three steps took longer than 480 s.",
                "failed": "A kernel failed: invalid configuration argument",
            }[outcome]
        record |= more
        self.write(series, f"{method}-{batch}-{side}-{link}-{cap // GIB}", record)
        return record

    def _measured(
        self, method: str, step: float, rate: float, cap: int, memory: float
    ) -> dict[str, Any]:
        """What is known of steps of that length alone."""
        over = max(0.0, memory - 1)
        record: dict[str, Any] = {
            "steps": [step * f for f in (1.0, 1.01, 0.995, 1.002)],
            "rate": {"mean": rate * 0.998, "median": rate, "spread": 0.015},
            "losses": [2.7, 2.61, 2.55, 2.5],
            "weights": "f00d",
            "peak": {
                "allocated": min(memory * self.peak, cap * 0.97),
                "reserved": min(memory * self.peak * 1.05, cap * 0.995),
                "host": over * 11 * GIB if method != "plain" else 0,
            },
            "gpu_busy": max(0.7, 0.995 - 0.02 * over),
        }
        if method != "plain":
            traffic = over * 9e9 + 1e8
            record |= {
                "bytes": {"to_host": traffic, "to_device": traffic * 1.08},
                "link": {
                    "to_host_rate": 55.1e9,
                    "to_device_rate": 55.4e9,
                    "to_host_use": min(0.93, traffic / 55.1e9 / step),
                    "to_device_use": min(0.96, traffic * 1.08 / 55.4e9 / step),
                },
                "bound": step * 0.955,
                "predicted": step * 0.985,
            }
        if method == "lms":
            record["timeline"] = timeline(step, self.count)
            record["allocations"] = {
                "driver": 212,
                "arena": 18240,
                "cache": 9120,
                "reclaimed": 640,
                "waited": 12,
            }
        return record

    def boundary(self, series: str, method: str, over: str, ok: int, failed: int, why: str) -> None:
        record = {
            "schema": "lms-bench-boundary/1",
            "study": self.study,
            "series": series,
            "model": self.model,
            "method": method,
            "cap": CAP,
            "over": over,
            "largest_ok": ok,
            "smallest_failed": failed,
            "why": why,
            "tries": [{"value": ok, "outcome": "ok"}, {"value": failed, "outcome": why}],
        }
        self.write(series, f"boundary.{method}", record)

    def write(self, series: str, key: str, record: dict[str, Any]) -> None:
        path = self.folder / self.study / series / f"{key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))

    def by_side(
        self, batch: int, memory_side: int, sides: list[int], rate: float, fall: float
    ) -> None:
        """A sweep of resolution: in memory up to `memory_side`, with LMS at all `sides`, with what
        users do today in between."""
        for side in sides:
            memory = (side / memory_side) ** self.dims
            warm = rate * (1 - 0.25 * math.exp(-3 * side / memory_side))
            slow = 1 - fall * math.log2(max(memory, 1))
            plain = "ok" if memory <= 1 else "oom"
            if memory <= 1 or memory < 2.5:
                self.run("resolution", "plain", batch, side, warm, plain, memory=memory)
            self.run("resolution", "lms", batch, side, warm * slow, memory=memory)
            if memory <= 6:
                cpu = "ok" if memory <= 4 else "host"
                self.run("resolution", "save_on_cpu", batch, side, warm * 0.09, cpu, memory=memory)
                again = "ok" if memory <= 2.6 else "oom"
                self.run("resolution", "checkpoint", batch, side, warm * 0.76, again, memory=memory)
        largest = sides[-1]
        step = sides[1] - sides[0]
        beyond = round(1.03 * memory_side)
        self.boundary("resolution", "plain", "side", memory_side, beyond, "oom")
        self.boundary("resolution", "lms", "side", largest, largest + step, "oom")

    def by_batch(
        self, side: int, in_memory: int, batches: list[int], rate: float, fall: float
    ) -> None:
        for batch in batches:
            memory = batch / in_memory
            slow = 1 - fall * math.log2(max(memory, 1))
            if memory < 1.6:
                plain = "ok" if memory <= 1 else "oom"
                self.run("batch", "plain", batch, side, rate, plain, memory=memory)
            self.run("batch", "lms", batch, side, rate * slow, memory=memory)
        self.boundary("batch", "plain", "batch", in_memory, in_memory + 1, "oom")
        self.boundary("batch", "lms", "batch", batches[-1], batches[-1] + 1, "timeout")

    def over_links(self, series: str, batch: int, side: int, rate: float, memory: float) -> None:
        for link, part in (("nvlink2", 1.0), ("pcie4", 0.88), ("pcie3", 0.71)):
            self.run(series, "lms", batch, side, rate * part, link=link, memory=memory)


def write_all(folder: Path) -> None:
    """All six studies, with all outcomes among them."""
    b1 = Maker(folder, "B1", "gscnn", "MP", 2, 13 * GIB)
    b1.by_batch(600, 8, [4, 6, 8, 10, 12, 16, 20], 2.1, 0.08)
    b1.over_links("batch", 16, 600, 1.95, 2)

    b2 = Maker(folder, "B2", "deeplabv3plus", "MP", 2, 14 * GIB)
    b2.by_side(2, 900, [700, 800, 900, 1100, 1300, 1700, 2100, 2500, 2800], 31, 0.05)
    b2.by_batch(900, 2, [1, 2, 4, 8, 12, 18, 26], 30, 0.05)
    b2.run("resolution", "lms", 2, 3300, 0, "timeout")

    b3 = Maker(folder, "B3", "resnet50", "MP", 2, 15 * GIB)
    b3.by_side(1, 3000, list(range(1500, 9001, 500)), 85, 0.06)
    b3.run("resolution", "lms", 1, 9500, 0, "oom", largest_operator=16.8 * GIB)
    b3.run("resolution", "plain", 1, 4000, 80, cap=32 * GIB, memory=1.8)
    b3.run("resolution", "lms", 1, 4000, 79, cap=32 * GIB, memory=1.8)
    b3.run("resolution", "lms", 1, 9500, 68, cap=32 * GIB, memory=10)
    b3.run("resolution", "lms", 1, 12000, 0, "host", cap=32 * GIB)
    b3.run("resolution", "lms-swap", 1, 6000, 60, memory=4, partial=True)

    b4 = Maker(folder, "B4", "unet3d", "MV", 3, 15 * GIB)
    b4.by_side(1, 160, [128, 144, 160, 176, 192, 208, 224, 240, 256], 9.5, 0.012)
    b4.run("resolution", "lms", 1, 272, 0, "oom", message=NO_ROOM, need=NEED)

    b5 = Maker(folder, "B5", "deeplabv3plus", "MP", 2, 15 * GIB)
    b5.by_side(16, 320, [256, 320, 384, 448, 512, 640, 800, 1024], 31, 0.045)

    b6 = Maker(folder, "B6", "googlenet", "images", 2, 15 * GIB)
    b6.by_batch(2240, 11, [6, 8, 11, 15, 22, 30, 44, 48], 14, 0.11)
    b6.over_links("links", 15, 2240, 13.1, 15 / 11)
    b6.run("links", "lms", 15, 2240, 13.4, memory=15 / 11)
    b6.run("links", "save_on_cpu", 15, 2240, 0, "failed", link="pcie3")
    # Not published by anyone; hardly a field given.
    sparse = {"schema": "lms-bench/1", "study": "own", "method": "lms", "outcome": "ok"}
    b6.folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.json").write_text(json.dumps(sparse))


def write_steps(folder: Path) -> None:
    """Records of the benchmark of single steps."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"gpu": "Made-up GPU"}
    for name, base in (("made_up_net_bf16_8x224", 0.01), ("made_up_language_model", 0.03)):
        plain = {"schema": 2, "step": name, "method": "plain", "machine": machine, "step_ms": 100.0}
        (folder / f"{name}.plain.json").write_text(json.dumps(plain))
        for ratio in (1.5, 2.0, 3.0, 4.0):
            overhead = base * ratio * ratio
            record = plain | {
                "method": "lms",
                "ratio": ratio,
                "limit_bytes": int(12 * GIB / ratio),
                "step_ms": 100 * (1 + overhead),
                "overhead": overhead,
                "predicted_overhead": overhead * 0.95,
                "bound_recompute_overhead": overhead * 0.8,
                "allocated_peak": int(12 * GIB / ratio),
                "bytes_out": 3 * 10**9,
                "bytes_in": 3 * 10**9,
                "bytes_recomputed": 4 * 10**9,
                "bit_identical": True,
            }
            (folder / f"{name}.lms.{ratio}x.json").write_text(json.dumps(record))
        failed = plain | {"method": "lms-swap", "ratio": 8.0, "error": "no plan fits"}
        (folder / f"{name}.lms-swap.8x.json").write_text(json.dumps(failed))


if __name__ == "__main__":
    import sys

    write_all(Path(sys.argv[1]))
    write_steps(Path(sys.argv[1]) / "steps")
