#!/usr/bin/env bash
# Benchmarks on a GPU: bench.sh [arguments of bench/run.py]. See scripts/gpu.sh.
source "$(dirname "$0")/common.sh"
source scripts/gpu.sh
say "building"
build_for_gpu -DLMS_TESTS=OFF
exec "$PYTHON" bench/run.py "$@"
