#!/usr/bin/env bash
# Builds for the newest PyTorch, in a virtual environment of its own (.venv-newest), the way a user
# does (pip install .), and runs the adapter's and the Python tests on the installed package.
source "$(dirname "$0")/common.sh"
scripts/setup.sh .venv-newest newest
export PATH="$ROOT/.venv-newest/bin:$PATH"
unset LMS_LIBRARY

install() {
  python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
    --force-reinstall -C build-dir=build-newest -C cmake.define.LMS_TESTS=ON \
    -C build.tool-args="-j$(jobs)" .
}
say "PyTorch $(python -c 'import torch; print(torch.__version__)')"
step "pip install ." install
if [ "$FAILED" -eq 0 ]; then
  step "C++ tests: adapter" \
    ctest --test-dir build-newest -L adapter --no-tests=error --output-on-failure -j "$(jobs)"
  # What is tested is the installed package: the source tree's stays out of the path.
  step "Python tests" python -m pytest tests/python -o pythonpath=. -m "not gpu"
fi
finish "make test-newest"
