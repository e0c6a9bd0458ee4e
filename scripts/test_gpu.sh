#!/usr/bin/env bash
# Tests on a GPU: all C++ tests, and the Python tests that are marked gpu. See scripts/gpu.sh.
source "$(dirname "$0")/common.sh"
source scripts/gpu.sh
say "machine"
describe_machine
say "building"
build_for_gpu
step "C++ tests" ctest --test-dir build-gpu --no-tests=error --output-on-failure
step "Python tests on the GPU" "$PYTHON" -m pytest tests/python -m gpu
finish "make test-gpu"
