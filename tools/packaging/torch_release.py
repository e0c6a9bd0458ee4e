"""Metadata of the Python package that depends on the PyTorch it is built for (scikit-build-core).

A library is for one release of PyTorch, so a package with one requires that release. A source
distribution is for all that are supported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANY_RELEASE = "torch>=2.11"


def torch_folder() -> Path | None:
    """The package folder of the PyTorch that CMake will find, too: LMS_TORCH_DIR's, else the one
    of this interpreter."""
    if os.environ.get("LMS_TORCH_DIR"):
        return Path(os.environ["LMS_TORCH_DIR"])
    probe = [sys.executable, str(ROOT / "cmake" / "probe_torch.py")]
    found = subprocess.run(probe, capture_output=True, text=True, check=True).stdout
    line = re.match(r"torch=(.+)", found)
    return Path(line.group(1)) if line else None


def release() -> tuple[int, int] | None:
    """(major, minor) of that PyTorch, or None where there is none."""
    folder = torch_folder()
    if folder is None or not (folder / "version.py").is_file():
        return None
    match = re.search(r"__version__ = '(\d+)\.(\d+)", (folder / "version.py").read_text())
    return (int(match.group(1)), int(match.group(2))) if match else None


def requirement(found: tuple[int, int] | None) -> str:
    """What the package requires of PyTorch."""
    if found is None:
        return ANY_RELEASE
    major, minor = found
    return f"torch>={major}.{minor},<{major}.{minor + 1}"


def version() -> str:
    """The version, with the local label that `make wheels` gives (LMS_LOCAL_VERSION): wheels for
    different releases of PyTorch must not have one name."""
    text = (ROOT / "python" / "torch_lms" / "_version.py").read_text()
    number = re.search(r'__version__ = "([^"]+)"', text).group(1)
    label = os.environ.get("LMS_LOCAL_VERSION", "")
    return f"{number}+{label}" if label else number


def dynamic_metadata(field: str, settings: dict[str, Any], *_: Any) -> Any:
    """What scikit-build-core asks for."""
    if field == "version":
        return version()
    if field == "dependencies":
        return [requirement(release())]
    raise ValueError(f"torch_release.py knows nothing of {field}")
