#!/usr/bin/env bash
# Benchmarks on a GPU: bench.sh [arguments of lab/bench/run.py]. See tools/scripts/gpu.sh.
source "$(dirname "$0")/common.sh"
source tools/scripts/gpu.sh
say "building"
build_for_gpu -DLMS_TESTS=OFF
exec "$PYTHON" lab/bench/run.py "$@"
