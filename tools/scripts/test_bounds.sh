#!/usr/bin/env bash
# The C++ tests that take long to compute the bounds, and the smallest limits, of real steps. What has passed
# is noted in .ci/bounds, to be committed: CI runs this only for sources that are not the noted ones.
#   test_bounds.sh            runs them
#   test_bounds.sh --if-new   runs them unless the committed sources are the noted ones
source "$(dirname "$0")/common.sh"

# What decides how they end.
FOLDERS=(src/base src/bound src/plan src/trace tests/golden tests/core/bound_test.cpp
  tests/core/deferral_test.cpp tests/tools/limits_test.cpp)

if [ "${1:-}" = --if-new ] && noted bounds "${FOLDERS[@]}"; then
  say "bounds: these sources have passed before"
  exit 0
fi
# shellcheck disable=SC2046 # nothing is no option
tools/scripts/build.sh $(whole_build build)

step "C++ tests: bounds of real steps" \
  ctest --test-dir build -R "$BOUNDS" --no-tests=error --output-on-failure -j "$(jobs)"
if [ "$FAILED" -eq 0 ]; then note bounds "${FOLDERS[@]}"; fi
finish "make test-bounds"
