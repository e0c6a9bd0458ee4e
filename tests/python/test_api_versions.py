"""A library of another PyTorch is never loaded: what is installed, what is needed, what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forked
import pytest
import torch

import torch_lms
from torch_lms import _library
from torch_lms._built_for import BuiltFor, choose, complaint, read_built_for, running

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
MARK = "LMS_BUILT_FOR{torch=%s,cuda=%d}"


def stand_in(path: Path, torch_version: str, cuda: int) -> Path:
    """A file that says what it was built for, and that no loader takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"no library\0" + (MARK % (torch_version, cuda)).encode() + b"\0")
    return path


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(_library, "_ops", None)
    return monkeypatch


def test_the_library_says_what_it_was_built_for() -> None:
    built = read_built_for(_library.library_path())
    assert built is not None and built.torch == RELEASE
    version = dict(_library.ops().info())["cuda_version"]
    assert built.cuda == (int(version.split(".")[0]) if version else 0)


def test_another_release_is_refused_before_it_is_loaded(unloaded, tmp_path: Path) -> None:
    other = stand_in(tmp_path / "liblms_torch.so", "2.12.1", 13000)
    unloaded.setenv("LMS_LIBRARY", str(other))
    with pytest.raises(RuntimeError) as error:
        torch_lms.enable(device="cpu")
    text = str(error.value)
    assert f"PyTorch {torch.__version__} is installed" in text
    assert "built for PyTorch 2.12" in text
    assert "pip install 'torch==2.12.*'" in text
    assert "--no-build-isolation" in text
    assert "cannot be loaded" not in text and "no library" not in text
    assert not torch_lms.is_enabled()


def test_torch_that_was_raised_beneath_is_refused(unloaded) -> None:
    unloaded.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(RuntimeError, match=r"PyTorch 2\.99\.0 is installed"):
        torch_lms.enable(device="cpu")


def test_another_cuda_is_refused_before_it_is_loaded(unloaded, tmp_path: Path) -> None:
    version = f"{RELEASE[0]}.{RELEASE[1]}.0"
    unloaded.setenv("LMS_LIBRARY", str(stand_in(tmp_path / "a.so", version, 99010)))
    with pytest.raises(RuntimeError, match=r"with CUDA 99.*(?s:.)*--no-build-isolation"):
        torch_lms.enable(device="cpu")


def test_a_file_that_says_nothing(unloaded, tmp_path: Path) -> None:
    for content in (b"", b"nothing at all"):
        (tmp_path / "lib.so").write_bytes(content)
        unloaded.setenv("LMS_LIBRARY", str(tmp_path / "lib.so"))
        with pytest.raises(RuntimeError, match="does not say which PyTorch"):
            _library.ops()


def test_the_one_that_fits_is_chosen() -> None:
    with_cuda, without = Path("lib/a.so"), Path("lib/cpu/a.so")
    there = {with_cuda: BuiltFor((2, 11), 13), without: BuiltFor((2, 11), 0)}
    assert choose(running("2.11.0+cu130", "13.0"), there) == with_cuda
    assert choose(running("2.11.1+cpu", None), there) == without
    assert choose(running("2.11.0+cu128", "12.8"), there) is None
    assert choose(running("2.12.0+cpu", None), there) is None
    # Built with LMS_CUDA=OFF: on the CPU it works in any.
    alone = {without: BuiltFor((2, 11), 0)}
    assert choose(running("2.11.0+cu128", "12.8"), alone) == without
    assert choose(running("2.12.0+cu128", "12.8"), alone) is None
    text = complaint("2.11.0+cu128", running("2.11.0+cu128", "12.8"), list(there.values()))
    assert "has CUDA 12" in text and "2.11 with CUDA 13 and PyTorch 2.11 with no CUDA" in text


def test_of_several_libraries_of_a_package_the_right_one(unloaded, tmp_path: Path) -> None:
    package = tmp_path / "torch_lms"
    here = f"{RELEASE[0]}.{RELEASE[1]}.0"
    cuda = int((torch.version.cuda or "0").split(".")[0])
    right = stand_in(package / "lib" / "x" / "liblms_torch.so", here, cuda * 1000)
    stand_in(package / "lib" / "liblms_torch.so", here, 99000)
    unloaded.delenv("LMS_LIBRARY", raising=False)
    unloaded.setattr(_library, "__file__", str(package / "_library.py"))
    assert _library.library_path() == right


def test_one_sees_the_message_and_not_the_loaders(tmp_path: Path) -> None:
    other = stand_in(tmp_path / "liblms_torch.so", "2.12.1", 13000)
    program = "import torch_lms; torch_lms.enable(device='cpu')"
    ran = subprocess.run(
        [*forked.command(), "-c", program], capture_output=True, text=True,
        env={"LMS_LIBRARY": str(other), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert ran.returncode == 1
    assert "pip install 'torch==2.12.*'" in ran.stderr
    assert "undefined symbol" not in ran.stderr and "OSError" not in ran.stderr
