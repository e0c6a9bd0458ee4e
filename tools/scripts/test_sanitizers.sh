#!/usr/bin/env bash
# The C++ tests of the core and of the report under sanitizers. What has passed is noted in
# .ci/sanitized, to be committed: CI runs this only for sources that are not the noted ones.
#   test_sanitizers.sh            runs them
#   test_sanitizers.sh --if-new   runs them unless the committed sources are the noted ones
source "$(dirname "$0")/common.sh"

# What decides how they end.
FOLDERS=(CMakeLists.txt cmake src lab/report tests/core tests/sim tests/report tests/CMakeLists.txt)
# Bounds are computed by one thread, and mostly by HiGHS, which is compiled without sanitizers.
LEFT_OUT=$BOUNDS
# The quality of forecasts, which one thread simulates, is for the other sanitizer: minutes under this one.
WITHOUT_THREADS='^ForesightProperty\.IsNeverMuchSlower'

if [ "${1:-}" = --if-new ] && noted sanitized "${FOLDERS[@]}"; then
  say "sanitizers: these sources have passed before"
  exit 0
fi
tools/scripts/setup.sh
export PATH="$ROOT/.venv/bin:$PATH"

core_with() { # FOLDER SANITIZERS TESTS [command before ctest]
  local folder=$1 sanitizers=$2 tests=$3 name targets=()
  shift 3
  for name in $tests; do targets+=("lms_${name}_tests"); done
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Sanitized -DCMAKE_CXX_FLAGS_SANITIZED="-O1 -DNDEBUG" -DLMS_UNITY=ON \
    -DLMS_SANITIZE="$sanitizers" -DLMS_TORCH=OFF -DLMS_STUDIES=OFF -DLMS_LINK_PACKAGE=OFF -DLMS_TESTS="${tests// /;}"
  cmake --build "$folder" --parallel "$(jobs)" --target "${targets[@]}"
  "$@" ctest --test-dir "$folder" -L "${tests// /|}" -E "$LEFT_OUT" --no-tests=error --output-on-failure -j "$(jobs)"
}
core_with_tsan() {
  # Thread sanitizer cannot place its shadow where addresses are too random; where the kernel lets
  # us, run without randomisation.
  local plain=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then plain=(setarch "$(uname -m)" -R); fi
  LEFT_OUT="$LEFT_OUT|$WITHOUT_THREADS" TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" \
    core_with build-tsan thread core ${plain[@]+"${plain[@]}"}
}

# GCC 12's leak check may take any memory of a thread for a header that glibc has not written since 2.25, and crash.
export ASAN_OPTIONS="intercept_tls_get_addr=0"
step "C++ core under address and undefined-behaviour sanitizer" core_with build-asan address,undefined 'core report'
step "C++ core under thread sanitizer" core_with_tsan
if [ "$FAILED" -eq 0 ]; then note sanitized "${FOLDERS[@]}"; fi
finish "make test-sanitizers"
