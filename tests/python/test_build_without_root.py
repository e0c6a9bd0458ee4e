"""Building the core needs no package of the system beside a compiler and zlib's library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pinned

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_headers_come_from_pip_or_from_the_tree(tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    assert cmake is not None
    source = tmp_path / "source"  # without .vendor/
    source.mkdir()
    for name in ("CMakeLists.txt", "cmake", "src", "include", "python", "tests", "tools", "lab"):
        (source / name).symlink_to(ROOT / name)
    configured = subprocess.run(
        [cmake, "-S", source, "-B", tmp_path / "build", "-G", "Unix Makefiles",
         "-DLMS_TORCH=OFF", "-DLMS_CUDA=OFF", "-DLMS_TESTS=OFF", "-DLMS_STUDIES=OFF",
         "-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include;/usr/include/x86_64-linux-gnu",
         f"-DPython3_EXECUTABLE={sys.executable}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert configured.returncode == 0, configured.stdout + configured.stderr
    cache = (tmp_path / "build" / "CMakeCache.txt").read_text()
    lines = dict(
        line.split("=", 1) for line in cache.splitlines() if line.startswith("LMS_") and "=" in line
    )
    assert lines["LMS_JSON_INCLUDE:PATH"].endswith("nlohmann_json/include")
    assert lines["LMS_ZLIB_INCLUDE:PATH"].endswith("cmake/zlib")
    built = subprocess.run(
        [cmake, "--build", tmp_path / "build", "--target", "lms_trace"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
