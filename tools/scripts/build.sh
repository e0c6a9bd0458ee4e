#!/usr/bin/env bash
# The development build: build/, with the pinned PyTorch of .venv; the library is linked into
# python/torch_lms/lib. build.sh [more CMake options]
source "$(dirname "$0")/common.sh"
tools/scripts/setup.sh
export PATH="$ROOT/.venv/bin:$PATH"
say "building"
build build -DPython3_EXECUTABLE="$ROOT/.venv/bin/python" -DLMS_TORCH=ON -DLMS_TESTS=ON "$@"
