#!/usr/bin/env bash
# All tests that need no GPU; sets up and builds first.
source "$(dirname "$0")/common.sh"
# shellcheck disable=SC2046 # nothing is no option
scripts/build.sh $(whole_build build)
export PATH="$ROOT/.venv/bin:$PATH"

core_with() { # FOLDER SANITIZERS TESTS [command before ctest]
  local folder=$1 sanitizers=$2 tests=$3 name targets=()
  shift 3
  for name in $tests; do targets+=("lms_${name}_tests"); done
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Sanitized -DCMAKE_CXX_FLAGS_SANITIZED="-O1 -DNDEBUG" -DLMS_UNITY=ON \
    -DLMS_SANITIZE="$sanitizers" -DLMS_TORCH=OFF -DLMS_STUDIES=OFF -DLMS_LINK_PACKAGE=OFF -DLMS_TESTS="${tests// /;}"
  cmake --build "$folder" --parallel "$(jobs)" --target "${targets[@]}"
  "$@" ctest --test-dir "$folder" -L "${tests// /|}" --no-tests=error --output-on-failure -j "$(jobs)"
}
core_with_tsan() {
  # Thread sanitizer cannot place its shadow where addresses are too random; where the kernel lets
  # us, run without randomisation.
  local plain=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then plain=(setarch "$(uname -m)" -R); fi
  TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" \
    core_with build-tsan thread core ${plain[@]+"${plain[@]}"}
}
consumer() {
  rm -rf build/prefix build/consumer
  cmake --install build --prefix build/prefix >/dev/null
  cmake -S examples/cpp -B build/consumer -G Ninja -DCMAKE_PREFIX_PATH="$ROOT/build/prefix" \
    -DPython3_EXECUTABLE="$ROOT/.venv/bin/python" -DCMAKE_BUILD_TYPE=Release
  cmake --build build/consumer
  ctest --test-dir build/consumer --no-tests=error --output-on-failure
}

step "C++ tests: core and adapter" \
  ctest --test-dir build -LE gpu --no-tests=error --output-on-failure -j "$(jobs)"
step "C++ core under address and undefined-behaviour sanitizer" core_with build-asan address,undefined 'core report'
step "C++ core under thread sanitizer" core_with_tsan
step "C++ program built against the installed package" consumer
step "Python tests" python_tests .venv/bin/python
finish "make test"
