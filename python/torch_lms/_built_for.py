"""What a library was built for, read from its file: one that is loaded into another PyTorch fails
with the loader's words, which say nothing to the one who has to act."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from pathlib import Path

# adapters/torch/built_for.h puts it there.
_MARK = re.compile(rb"LMS_BUILT_FOR\{torch=(\d+)\.(\d+)[^,]*,cuda=(\d+)\}")

SOURCE_COMMAND = "pip install --force-reinstall --no-deps --no-build-isolation ."


@dataclass(frozen=True)
class BuiltFor:
    """The release of PyTorch, (major, minor), and the major version of CUDA; 0: without CUDA."""

    torch: tuple[int, int]
    cuda: int

    def __str__(self) -> str:
        cuda = f"CUDA {self.cuda}" if self.cuda else "no CUDA"
        return f"PyTorch {self.torch[0]}.{self.torch[1]} with {cuda}"


def read_built_for(library: Path) -> BuiltFor | None:
    """What the file says; None if it says nothing, as other files do.

    Raises:
        OSError: it cannot be read.
    """
    with library.open("rb") as file:
        if library.stat().st_size == 0:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found = _MARK.search(text)
            if found is None:
                return None
            major, minor, cuda = (int(group) for group in found.groups())
    return BuiltFor((major, minor), cuda // 1000)


def release_of(version: str) -> tuple[int, int]:
    """The (major, minor) of a version such as ``2.11.0+cu130``; RuntimeError if it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise RuntimeError(f"torch_lms: cannot read the PyTorch version {version!r}")
    return int(match.group(1)), int(match.group(2))


def running(version: str, cuda: str | None) -> BuiltFor:
    """What a library has to be built for, to be loaded into this PyTorch (``torch.__version__`` and
    ``torch.version.cuda``)."""
    return BuiltFor(release_of(version), int(cuda.split(".")[0]) if cuda else 0)


def choose(needed: BuiltFor, there: dict[Path, BuiltFor]) -> Path | None:
    """The library to load: the one for that CUDA; where all are without CUDA (LMS_CUDA=OFF), one of
    those, which then manages the CPU alone. None if there is none."""
    fitting = {path: built for path, built in there.items() if built.torch == needed.torch}
    for path, built in fitting.items():
        if built == needed:
            return path
    if not any(built.cuda for built in there.values()):
        return next(iter(fitting), None)
    return None


def complaint(version: str, needed: BuiltFor, there: list[BuiltFor]) -> str:
    """What is wrong, and what to do about it, where none of the libraries that are ``there`` is
    what is ``needed`` for the PyTorch of that version."""
    releases = sorted({built.torch for built in there})
    names = " or ".join(f"{major}.{minor}" for major, minor in releases)
    if needed.torch not in releases:
        major, minor = needed.torch
        return (
            f"torch_lms: PyTorch {version} is installed, but this torch_lms was built for PyTorch "
            f"{names}. Either install that PyTorch again:\n"
            f"    pip install 'torch=={releases[-1][0]}.{releases[-1][1]}.*'\n"
            f"or a torch_lms for PyTorch {major}.{minor}: its wheel "
            f"(torch_lms-...+torch{major}.{minor}-...whl), or in the folder of its sources:\n"
            f"    {SOURCE_COMMAND}"
        )
    kinds = " and ".join(str(built) for built in there)
    has = f"CUDA {needed.cuda}" if needed.cuda else "no CUDA"
    text = (
        f"torch_lms: PyTorch {version} has {has}, but this torch_lms was built for {kinds}. "
        "Either build it for this PyTorch, in the folder of its sources:\n"
        f"    {SOURCE_COMMAND}\n"
    )
    cuda = max(built.cuda for built in there)
    major, minor = needed.torch
    return text + (
        f"or install a PyTorch {major}.{minor} with CUDA {cuda}, as pip has it:\n"
        f"    pip install --force-reinstall 'torch=={major}.{minor}.*'"
    )
