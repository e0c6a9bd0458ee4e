"""Builds the tests' extension, as ``torch.utils.cpp_extension`` does, once per library folder."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("raw.cpp")


def build(folder: Path, name: str, cuda: bool) -> Path:
    """Compiles it, and returns the module's file."""
    library = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    torch_folder = Path(torch.__file__).parent
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
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
    subprocess.run(command, check=True)
    return library


def load(library: Path) -> ModuleType:
    """Imports it, under its file's name, as ``cpp_extension.load`` does."""
    spec = importlib.util.spec_from_file_location(library.name.partition(".")[0], library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
