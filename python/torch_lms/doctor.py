"""The doctor: what this machine is, how fast its links are, what works here, and a self-test."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_lms

from . import _library, _machine, _settings
from ._summary import format_bytes

_MIB = 1 << 20
_LINK_BYTES = 256 * _MIB
_DISK_BYTES = 128 * _MIB
_TEST_LIMIT = 256 * _MIB


def _available_memory() -> int | None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def versions() -> dict[str, Any]:
    """Versions of the package, of PyTorch, and what the library was built with (or its error)."""
    found: dict[str, Any] = {
        "torch_lms": torch_lms.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }
    try:
        found["library"] = dict(_library.ops().info())
    except RuntimeError as error:
        found["library_error"] = str(error)
    return found


def device_facts(device: str) -> dict[str, Any]:
    """Name, memory and NUMA node of a device."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    facts: dict[str, Any] = {
        "name": device,
        "memory": _machine.device_memory(device),
        "numa_nodes": max(1, len(nodes)),
    }
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        facts["model"] = properties.name
        free, _ = torch.cuda.mem_get_info(device)
        facts["free"] = free
        address = (
            f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
            f"{properties.pci_device_id:02x}.0"
        )
        try:
            node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
        except (OSError, ValueError):
            node = -1
        facts["numa_node"] = node if node >= 0 else None
    return facts


def host_facts() -> dict[str, Any]:
    """Processors and main memory."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "available": _available_memory(),
        "group_limit": _machine.memory_limit_of_group(),
    }


def link_rates(device: str) -> dict[str, float]:
    """Measured rates of a GPU's link, in GB/s, and of pinning, in GiB/s. Empty for the CPU."""
    if device == "cpu":
        return {}
    names = ("out_gb_s", "in_gb_s", "both_gb_s", "pinning_gib_s")
    return dict(zip(names, _library.ops().measure_link(device, _LINK_BYTES), strict=True))


def disk_facts(directory: str, size: int = _DISK_BYTES) -> dict[str, Any]:
    """The file tier's file system, its space, and its rates in GB/s past the page cache."""
    space = os.statvfs(directory)
    facts: dict[str, Any] = {
        "directory": directory,
        "file_system": _machine.file_system_of(directory),
        "free": space.f_frsize * space.f_bavail,
        "direct": True,
    }
    if facts["free"] < 4 * size:
        return facts
    descriptor, path = tempfile.mkstemp(prefix="lms-doctor-", dir=directory)
    os.close(descriptor)
    chunk = mmap.mmap(-1, 16 * _MIB)  # aligned, as O_DIRECT wants it
    try:
        chunk.write(os.urandom(_MIB) * 16)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
        except OSError:
            facts["direct"] = False
            descriptor = os.open(path, os.O_RDWR)
        try:
            start = time.perf_counter()
            for offset in range(0, size, len(chunk)):
                os.pwrite(descriptor, chunk, offset)
            os.fsync(descriptor)
            facts["write_gb_s"] = size / (time.perf_counter() - start) / 1e9
            os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            for offset in range(0, size, len(chunk)):
                os.preadv(descriptor, [chunk], offset)
            facts["read_gb_s"] = size / (time.perf_counter() - start) / 1e9
        finally:
            os.close(descriptor)
    finally:
        chunk.close()
        os.unlink(path)
    return facts


def supported(device: str, disk: dict[str, Any]) -> dict[str, bool]:
    """What works on this machine."""
    return {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "file_tier_on_disk": disk["file_system"] not in ("tmpfs", "ramfs"),
        "direct_io": disk["direct"],
        "link_measured": device != "cpu",
    }


def _train(device: str) -> list[list[int]]:
    """Three steps of a small net; the bits of the losses, and of the weights after them."""
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.ReLU(),
        torch.nn.LayerNorm(128),
        torch.nn.Linear(128, 10),
    ).to(device)
    data = torch.randn(32, 64).to(device)
    target = torch.arange(32).remainder(10).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(data), target)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    found += [p.detach() for p in net.parameters()]
    # Not by NumPy, which PyTorch does not need.
    return [one.cpu().reshape(-1).view(torch.int32).tolist() for one in found]


def self_test(device: str) -> dict[str, Any]:
    """Trains plainly and with everything evicted after every operator; equal to the last bit?"""
    if torch_lms.is_enabled(device):
        raise RuntimeError("torch_lms: the self-test needs a device that is not managed yet")
    plain = _train(device)
    with torch_lms.managed(limit=_TEST_LIMIT, min_block=1, device=device, stress=True):
        before = torch_lms.memory_stats(device)
        stressed = _train(device)
        after = torch_lms.memory_stats(device)
    moved = {key: after[key] - before.get(key, 0) for key in ("evictions", "page_ins", "bytes_in")}
    identical = plain == stressed
    return {
        "passed": identical and moved["evictions"] > 0 and moved["page_ins"] > 0,
        "bit_identical": identical,
        **moved,
    }


def _attempt(what: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return what()
    except RuntimeError as error:
        return {"error": str(error)}


def examine(device: str, directory: str) -> dict[str, Any]:
    """The whole report as plain values."""
    report: dict[str, Any] = {"versions": versions(), "device": device_facts(device)}
    report["host"] = host_facts()
    report["disk"] = disk_facts(directory)
    report["supported"] = supported(device, report["disk"])
    if "library_error" in report["versions"]:
        report["self_test"] = {"passed": False, "error": report["versions"]["library_error"]}
        return report
    report["link"] = _attempt(lambda: link_rates(device))
    report["self_test"] = _attempt(lambda: self_test(device))
    report["self_test"].setdefault("passed", False)
    return report


def _show(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if name in ("memory", "free", "available", "group_limit", "bytes_in"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def render(report: dict[str, Any]) -> str:
    """The report as text to read."""
    lines = []
    for section, facts in report.items():
        if not facts:
            continue
        lines.append(section.replace("_", " "))
        for name, value in facts.items():
            if isinstance(value, dict):
                value = ", ".join(f"{key} {item}" for key, item in value.items())
            label = name.replace("_gb_s", " (GB/s)").replace("_gib_s", " (GiB/s)")
            lines.append(f"  {label.replace('_', ' '):<20} {_show(name, value)}")
    lines.append("self-test passed" if report["self_test"]["passed"] else "self-test FAILED")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints the report; 0 if the self-test passed, else 1 (2 for bad settings)."""
    parser = argparse.ArgumentParser(prog="python -m torch_lms", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: LMS_DEVICE, else found)")
    parser.add_argument(
        "--directory", help="where the file tier lives (default: LMS_DIR, else found)"
    )
    options = parser.parse_args(arguments)
    try:
        settings = _settings.resolve({"device": options.device, "directory": options.directory})
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    report = examine(settings.device, settings.directory)
    print(json.dumps(report, indent=2) if options.json else render(report))
    return 0 if report["self_test"]["passed"] else 1
