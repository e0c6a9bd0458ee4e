#!/usr/bin/env bash
# Builds for the newest PyTorch, in a virtual environment of its own (.venv-newest), the way a user
# does (pip install .), and runs the tests on the library that was installed.
source "$(dirname "$0")/common.sh"
tools/scripts/setup.sh .venv-newest newest
export PATH="$ROOT/.venv-newest/bin:$PATH"
unset LMS_LIBRARY PYTHONPATH

install() {
  python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
    --force-reinstall --config-settings=build-dir=build-newest --config-settings=cmake.define.LMS_TESTS=adapter \
    --config-settings=cmake.define.LMS_STUDIES=OFF \
    --config-settings=cmake.define.LMS_UNITY=ON \
    --config-settings=build.tool-args="-j$(jobs)" .
}
doctor() {
  cd build-newest || return # away from the source tree's package
  python -m torch_lms
}
installed_library() {
  (cd build-newest && python -c 'from torch_lms import _library; print(_library.library_path())')
}

say "PyTorch $(python -c 'import torch; print(torch.__version__)')"
step "pip install ." install
if [ "$FAILED" -eq 0 ]; then
  step "the installed package: python -m torch_lms" doctor
  step "C++ tests: adapter" \
    ctest --test-dir build-newest -LE gpu --no-tests=error --output-on-failure -j "$(jobs)"
  LMS_LIBRARY=$(installed_library)
  export LMS_LIBRARY
  # Some are marked `pinned`: those of the folder lab/bench/ (all but lms bench's), of reports, pages, their commands and
  # notebooks, of what LMS says and draws, of the system's failures, of which steps are planned (but for the loops of
  # test_plan_loops.py) and of which limits suffice say nothing of a PyTorch. Of what waits the optimizers are enough.
  # Random programs have been sorted out for the pinned one: another leaks by itself, or leaves to chance, other things.
  step "Python tests" python_tests python "not gpu and not pinned"
fi
finish "make test-newest"
