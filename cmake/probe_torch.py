"""Print where PyTorch is installed, as lines `key=value`, without importing it.

Looks first where this interpreter would import torch from; then, because a build-isolated pip hides
them, in the interpreter's own site folders. Prints nothing when there is no torch.
"""

from __future__ import annotations

import importlib.util
import site
import sys
import sysconfig
from pathlib import Path


def site_folders() -> list[Path]:
    """The folders in which packages of this interpreter may lie, first the importable ones."""
    names = [*sys.path, sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    names += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        names.append(site.getusersitepackages())
    seen: dict[Path, None] = {}
    for name in names:
        path = Path(name or ".")
        if path.is_dir():
            seen.setdefault(path.resolve())
    return list(seen)


def find_torch(folders: list[Path]) -> Path | None:
    """PyTorch's package folder, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        if (folder / "lib").is_dir():
            return folder
    for path in folders:
        if (path / "torch" / "version.py").is_file() and (path / "torch" / "lib").is_dir():
            return path / "torch"
    return None


def main() -> None:
    folders = site_folders()
    torch = find_torch(folders)
    if torch is None:
        return
    print(f"torch={torch}")
    nearby = [torch.resolve().parent, *folders]
    print("site=" + ";".join(dict.fromkeys(str(path) for path in nearby)))


main()
