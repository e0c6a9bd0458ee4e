#!/usr/bin/env bash
# Sets up all that building and testing need: setup.sh [VENV [REQUIREMENTS]]
#   VENV          folder of the virtual environment (.venv)
#   REQUIREMENTS  which PyTorch: torch (the pinned one) or newest
# Safe to run again; quick when there is nothing to do. PYTHON names the interpreter to start from;
# WITH_TESTS=0 does without the libraries that only the C++ tests need.
source "$(dirname "$0")/common.sh"
VENV=${1:-.venv}
WHICH=${2:-torch}

# --- system packages -------------------------------------------------------------------------------
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}
may_install() {
  command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }
}
apt_install() {
  say "installing $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || true
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

packages=()
command -v g++ >/dev/null || packages+=(g++)
extras=() # what the build does without
# has HEADER VENDORED: the header is here.
has() {
  [ -f ".vendor/$2/$1" ] || { command -v g++ >/dev/null && have_headers "$1"; }
}
has nlohmann/json.hpp json/include || packages+=(nlohmann-json3-dev)
has zlib.h zlib/include || packages+=(zlib1g-dev)
has CLI/CLI.hpp cli11/include || extras+=(libcli11-dev)
has toml++/toml.h toml/include || extras+=(libtomlplusplus-dev)
has spng.h images/include || extras+=(libspng-dev)
[ -f .vendor/images/include/jpeglib.h ] || have_headers cstdio jpeglib.h || extras+=(libjpeg-dev)
# It includes others of its folder by their bare names.
has nifti/nifti2_io.h images/include || [ -f /usr/include/nifti/nifti2_io.h ] || extras+=(libnifti-dev)
# The browser that the tests of `lms report` open its page in (20 s, 350 MB): only where nobody minds.
if [ -n "${CI:-}" ] && ! command -v chromium >/dev/null; then extras+=(chromium); fi
libraries=${WITH_TESTS:-1}
[ -f .vendor/googletest/CMakeLists.txt ] && [ -f .vendor/rapidcheck/include/rapidcheck.h ] && libraries=0
if [ "$libraries" -ne 0 ]; then
  command -v g++ >/dev/null && have_headers gtest/gtest.h || packages+=(libgtest-dev)
  command -v g++ >/dev/null && have_headers rapidcheck.h || packages+=(librapidcheck-dev)
fi
if [ ${#packages[@]} -gt 0 ]; then
  if ! { may_install && apt_install "${packages[@]}"; }; then
    die "these packages are missing and could not be installed: ${packages[*]}
Install them (sudo apt-get install ${packages[*]}), or bring a folder .vendor that 'make vendor'
filled on another machine (it holds the libraries among them)."
  fi
fi
if [ ${#extras[@]} -gt 0 ]; then
  { may_install && apt_install "${extras[@]}"; } ||
    say "missing, and done without: ${extras[*]} (the tools 'lms' and 'lms-train' are left out, or one of them; tests without a browser are skipped)"
fi

# --- virtual environment ---------------------------------------------------------------------------
find_python() {
  local name
  for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  die "no Python 3.10 or newer was found; name one: PYTHON=/path/to/python3 make ..."
}
make_venv() {
  local python=$1 tools
  "$python" -m venv "$VENV" 2>/dev/null && return
  rm -rf "$VENV"
  say "$python cannot make virtual environments by itself"
  if may_install && apt_install python3-venv && "$python" -m venv "$VENV"; then return; fi
  rm -rf "$VENV"
  tools=$(mktemp -d)
  if "$python" -m pip install -q --target "$tools" virtualenv &&
    PYTHONPATH="$tools" "$python" -m virtualenv -q "$VENV"; then
    rm -rf "$tools"
    return
  fi
  rm -rf "$tools" "$VENV"
  die "no virtual environment can be made: install python3-venv (sudo apt-get install python3-venv)"
}

# The stamp is the text of the requirements that were installed. For the newest PyTorch it also holds
# the day, so that a new release is seen.
stamp=$VENV/.lms-setup
wanted() {
  cat tools/requirements/dev.txt "tools/requirements/$WHICH.txt"
  [ "$WHICH" != newest ] || date +%F
}
# A virtual environment without a stamp may have been left half made.
if [ ! -x "$VENV/bin/python" ] ||
  { [ ! -f "$stamp" ] && ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }; then
  rm -rf "$VENV"
  python=$(find_python)
  say "making $VENV with $("$python" --version)"
  make_venv "$python"
fi
if ! wanted | cmp -s - "$stamp"; then
  say "installing PyTorch and the tools into $VENV (the first time this downloads a few GB)"
  rm -f "$stamp"
  upgrade=()
  [ "$WHICH" != newest ] || upgrade=(--upgrade)
  "$VENV/bin/python" -m pip install -q --disable-pip-version-check --prefer-binary \
    ${upgrade[@]+"${upgrade[@]}"} -r tools/requirements/dev.txt -r "tools/requirements/$WHICH.txt"
  wanted >"$stamp"
fi
