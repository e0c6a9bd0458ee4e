"""Finds and loads the operator library (``liblms_torch.so``), once per process, on first use."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import torch

LIBRARY_NAME = "liblms_torch.so"
OLDEST_TORCH = (2, 11)

_lock = threading.Lock()
_ops: Any = None


def release_of(version: str) -> tuple[int, int]:
    """The (major, minor) of a version such as ``2.11.0+cu130``; RuntimeError if it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise RuntimeError(f"torch_lms: cannot read the PyTorch version {version!r}")
    return int(match.group(1)), int(match.group(2))


def check_supported(version: str) -> None:
    """Raises RuntimeError if this release of PyTorch is older than the oldest supported one."""
    if release_of(version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise RuntimeError(
            f"torch_lms: PyTorch {version} is not supported; it needs PyTorch {oldest} or newer "
            f"(pip install 'torch>={oldest}', then build torch_lms against it)"
        )


def check_matches(running: str, built_for: str) -> None:
    """Raises RuntimeError unless both versions are of the same release (major.minor)."""
    if release_of(running) == release_of(built_for):
        return
    release = ".".join(map(str, release_of(built_for)))
    raise RuntimeError(
        f"torch_lms: this library was built for PyTorch {built_for}, but PyTorch {running} is "
        f"running; install torch=={release}.*, or build torch_lms again against PyTorch {running} "
        "(pip install --force-reinstall --no-deps --no-build-isolation .)"
    )


def library_path() -> Path:
    """Where the library is: ``LMS_LIBRARY``, else ``lib/`` of this package.

    Raises:
        RuntimeError: nothing is there; the message names every place that was tried.
    """
    chosen = os.environ.get("LMS_LIBRARY")
    path = Path(chosen) if chosen else Path(__file__).parent / "lib" / LIBRARY_NAME
    if path.is_file():
        return path
    if chosen:
        raise RuntimeError(f"torch_lms: LMS_LIBRARY names {path}, which is not a file")
    raise RuntimeError(
        f"torch_lms: {LIBRARY_NAME} was not found at {path}; install the package (pip install .), "
        "or let LMS_LIBRARY name a build of it"
    )


def is_loaded() -> bool:
    """Whether this process has loaded the library."""
    return _ops is not None


def ops() -> Any:
    """The operators (``torch.ops.lms``); the first call loads the library. Thread-safe.

    Raises:
        RuntimeError: this PyTorch is not supported, the library is missing or cannot be loaded,
            or it was built for another release of PyTorch.
    """
    global _ops
    if _ops is not None:
        return _ops
    with _lock:
        if _ops is None:
            check_supported(torch.__version__)
            path = library_path()
            try:
                torch.ops.load_library(str(path))
            except OSError as error:
                raise RuntimeError(
                    f"torch_lms: {path} cannot be loaded into PyTorch {torch.__version__} (was it "
                    f"built for another release, or another CUDA?): {error}"
                ) from error
            info = dict(torch.ops.lms.info())
            check_matches(torch.__version__, info["torch_version"])
            _ops = torch.ops.lms
    return _ops
