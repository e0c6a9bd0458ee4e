"""What the machine has: memory and disks that this process may use."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch


def file_system_of(path: str | os.PathLike[str]) -> str:
    """The type of the file system that holds ``path`` (``ext4``, ``tmpfs``...), or ``unknown``."""
    try:
        target = os.path.realpath(path)
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    best, kind = -1, "unknown"
    for line in mounts:
        left, _, right = line.partition(" - ")
        point = left.split(" ")[4].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), right.split(" ")[0]
    return kind


def default_directory() -> str:
    """The first of TMPDIR, /var/tmp and the working directory that can be written and is on a
    disk (a tmpfs is memory, which would defeat the purpose); else the system's own choice."""
    for candidate in (os.environ.get("TMPDIR"), "/var/tmp", os.getcwd()):
        if (
            candidate
            and os.path.isdir(candidate)
            and os.access(candidate, os.W_OK | os.X_OK)
            and file_system_of(candidate) not in ("tmpfs", "ramfs")
        ):
            return os.path.abspath(candidate)
    return tempfile.gettempdir()


def memory_limit_of_group() -> int | None:
    """The smallest memory limit of this process's control groups, or None if there is none."""
    limits = []
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                text = "max"
            if text.isdigit() and int(text) < 2**60:
                limits.append(int(text))
            if folder == root:
                break
    return min(limits, default=None)


def host_memory() -> int:
    """Bytes of main memory that this process may use: the machine's, or its control group's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, memory_limit_of_group() or machine)


def device_memory(device: str) -> int:
    """Bytes that 100 % of ``device`` stands for."""
    if device == "cpu":
        return host_memory()
    return torch.cuda.get_device_properties(device).total_memory


def tier_below(device: str, directory: str) -> int:
    """Bytes that 100 % of the tier below ``device`` stands for: main memory below a GPU, the free
    space of the file system below the CPU."""
    if device != "cpu":
        return host_memory()
    space = os.statvfs(directory)
    return space.f_frsize * space.f_bavail
