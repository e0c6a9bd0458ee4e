"""``lms run --nproc-per-node``: one process for each GPU, started by torchrun's own launcher."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from . import _settings

_SYS = Path("/sys/bus/pci/devices")


def check(processes: str, device: str | None) -> None:
    """ValueError, which says why, if processes cannot be started so."""
    if device is not None and device not in ("cpu", "cuda"):
        raise ValueError(
            f"--device {device}: with --nproc-per-node each process has the GPU of its rank"
        )
    if not processes.isdigit() and processes not in ("gpu", "cpu", "auto"):
        raise ValueError(f"--nproc-per-node {processes}: use a number, or gpu")
    if not torch.distributed.is_available():
        raise ValueError("--nproc-per-node: this PyTorch has no torch.distributed")


def launch(processes: str, settings: dict[str, str | None], program: list[str]) -> None:
    """Runs ``program`` in so many processes of this machine (a number, or ``gpu``), each under LMS
    with these settings. Returns when all have ended; torchrun's errors pass on."""
    from torch.distributed.run import main

    words = [f"--{name.replace('_', '-')}={text}" for name, text in settings.items() if text]
    main(
        ["--standalone", f"--nproc-per-node={processes}", "-m", "torch_lms", "run", "--bind=on"]
        + [*words, "--", *program]
    )


def _parse_cores(text: str) -> set[int]:
    """``0-3,8`` as Linux writes it."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cores |= set(range(int(first), int(last or first) + 1))
    return cores


def cores_near(device: str, sys: Path = _SYS) -> set[int]:
    """The processor cores beside a GPU, on its NUMA node; empty where that is not known."""
    index = torch.device(device).index
    if not device.startswith("cuda") or index is None:
        return set()
    try:
        found = torch.cuda.get_device_properties(index)
        address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        return _parse_cores((sys / address / "local_cpulist").read_text())
    except (AttributeError, OSError, RuntimeError, ValueError):
        return set()


def bind_to_gpu() -> None:
    """From now on this process, and what it starts, run on the cores near the GPU of its rank, of
    those that it may use. Changes nothing where these are not known."""
    try:
        cores = cores_near(_settings.default_device()) & os.sched_getaffinity(0)
        if cores:
            os.sched_setaffinity(0, cores)
    except (AttributeError, OSError):
        pass  # no Linux, or not allowed
