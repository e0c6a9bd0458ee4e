#!/usr/bin/env bash
# All tests that need no GPU, but those under sanitizers (test_sanitizers.sh) and the bounds of real steps
# (test_bounds.sh); sets up and builds first.
source "$(dirname "$0")/common.sh"
# shellcheck disable=SC2046 # nothing is no option
tools/scripts/build.sh $(whole_build build)
export PATH="$ROOT/.venv/bin:$PATH"

consumer() {
  rm -rf build/prefix build/consumer
  cmake --install build --prefix build/prefix >/dev/null
  cmake -S examples/cpp -B build/consumer -G Ninja -DCMAKE_PREFIX_PATH="$ROOT/build/prefix" \
    -DPython3_EXECUTABLE="$ROOT/.venv/bin/python" -DCMAKE_BUILD_TYPE=Release
  cmake --build build/consumer
  ctest --test-dir build/consumer --no-tests=error --output-on-failure
}

step "C++ tests: core and adapter" \
  ctest --test-dir build -LE gpu -E "$BOUNDS" --no-tests=error --output-on-failure -j "$(jobs)"
step "C++ program built against the installed package" consumer
step "Python tests" python_tests .venv/bin/python
finish "make test"
