"""Finds and loads the operator library (``liblms_torch.so``), once per process, on first use."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import torch

from ._built_for import BuiltFor, choose, complaint, read_built_for, release_of, running

LIBRARY_NAME = "liblms_torch.so"
OLDEST_TORCH = (2, 11)

_lock = threading.Lock()
_ops: Any = None


def check_supported(version: str) -> None:
    """Raises RuntimeError if this release of PyTorch is older than the oldest supported one."""
    if release_of(version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise RuntimeError(
            f"torch_lms: PyTorch {version} is not supported; it needs PyTorch {oldest} or newer "
            f"(pip install 'torch>={oldest}', then build torch_lms against it)"
        )


def _candidates() -> list[Path]:
    """``LMS_LIBRARY``, else what is in ``lib/`` of this package; RuntimeError if there is none."""
    chosen = os.environ.get("LMS_LIBRARY")
    if chosen:
        if not Path(chosen).is_file():
            raise RuntimeError(f"torch_lms: LMS_LIBRARY names {chosen}, which is not a file")
        return [Path(chosen)]
    folder = Path(__file__).parent / "lib"
    found = [path for path in sorted(folder.rglob(LIBRARY_NAME)) if path.is_file()]
    if not found:
        raise RuntimeError(
            f"torch_lms: {LIBRARY_NAME} was not found in {folder}; install the package (pip "
            "install .), or let LMS_LIBRARY name a build of it"
        )
    return found


def library_path() -> Path:
    """The library for the PyTorch that is imported: ``LMS_LIBRARY``, else one of this package's.

    Raises:
        RuntimeError: there is none, or none that was built for this PyTorch; the message says for
            which, and what to install.
    """
    there: dict[Path, BuiltFor] = {}
    for path in _candidates():
        built = read_built_for(path)
        if built is None:
            raise RuntimeError(
                f"torch_lms: {path} does not say which PyTorch it was built for: it is no "
                f"{LIBRARY_NAME}, or that of an older torch_lms"
            )
        there[path] = built
    needed = running(torch.__version__, torch.version.cuda)
    path = choose(needed, there)
    if path is None:
        raise RuntimeError(complaint(torch.__version__, needed, list(there.values())))
    return path


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
                    f"torch_lms: {path} cannot be loaded into PyTorch {torch.__version__}, for "
                    f"which it was built: {error}"
                ) from error
            _ops = torch.ops.lms
    return _ops
