#!/usr/bin/env bash
# Tests on a GPU: all C++ tests, and the Python tests that are marked gpu. See tools/scripts/gpu.sh.
source "$(dirname "$0")/common.sh"
source tools/scripts/gpu.sh
say "machine"
describe_machine
say "building"
build_for_gpu
step "C++ tests" ctest --test-dir build-gpu --no-tests=error --output-on-failure
# Side by side in so many processes, for which the device has room; GPU_TESTS=1: in one.
at_once=()
if [ "${GPU_TESTS:=4}" -gt 1 ] && "$PYTHON" -c 'import xdist' 2>/dev/null; then
  at_once=(-n "$GPU_TESTS" --dist worksteal)
fi
step "Python tests on the GPU" \
  "$PYTHON" -m pytest tests/python -m gpu ${at_once[@]+"${at_once[@]}"}
finish "make test-gpu"
