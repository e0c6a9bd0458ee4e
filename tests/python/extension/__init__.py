"""Builds the tests' extensions, as ``torch.utils.cpp_extension`` does: once for all processes of
tests, as that takes a minute."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

FOLDER = Path(__file__).parent


def build(cuda: bool, what: str = "raw") -> Path:
    """The file of the module ``lms_test_raw``, or ``lms_test_raw_cuda``; compiles it if nobody has.

    Whoever else wants it meanwhile waits. ``what``: the name of its source.
    """
    name = f"lms_test_{what}{'_cuda' if cuda else ''}"
    source = FOLDER / f"{what}.cpp"
    command = _command(name, source, cuda)
    facts = [*command, torch.__version__, source.read_text()]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"lms-test-extension-{os.getuid()}-{key}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".unfinished")
            subprocess.run([*command, "-o", str(unfinished)], check=True)
            unfinished.rename(library)
    return library


def _command(name: str, source: Path, cuda: bool) -> list[str]:
    torch_folder = Path(torch.__file__).parent
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", str(source)]
    command += [f"-DTORCH_EXTENSION_NAME={name}"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    folders = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = ["c10", "torch", "torch_cpu", "torch_python"]
    if cuda:
        command += ["-DLMS_TEST_CUDA"]
        # The toolkit's, if there is one: a wheel may have but a part.
        if cpp_extension.CUDA_HOME:
            folders += [f"{cpp_extension.CUDA_HOME}/include"]
        folders += [str(path) for path in torch_folder.parent.glob("nvidia/cu*/include")]
        libraries += ["c10_cuda"]
    command += [f"-I{path}" for path in folders]
    command += [f"-L{torch_folder / 'lib'}", *(f"-l{library}" for library in libraries)]
    return command


def load(library: Path) -> ModuleType:
    """Imports it, under its file's name, as ``cpp_extension.load`` does."""
    spec = importlib.util.spec_from_file_location(library.name.partition(".")[0], library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
