# shellcheck shell=bash
# Shared by the scripts of this folder; to be sourced. Leaves the shell in the root of the repository.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ROOT=$PWD

say() { printf '\n== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Compile jobs: one a core, and one for every 2 GiB of free memory at most (PyTorch's headers).
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 2097152) }' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo "${JOBS:-$((cores < memory ? cores : memory))}"
}

# Whether g++ finds all of these headers.
have_headers() {
  printf '#include <%s>\n' "$@" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1
}

# build FOLDER [cmake options]: configures and builds with ninja.
build() {
  local folder=$1
  shift
  cmake -S . -B "$folder" -G Ninja "$@"
  cmake --build "$folder" --parallel "$(jobs)"
}

# For a folder from nothing: sources are compiled several at once. One that is there stays as it is.
# whole_build FOLDER: the option, or nothing
whole_build() { [ -f "$1/CMakeCache.txt" ] || echo -DLMS_UNITY=ON; }

# Tests of their own target, test_bounds.sh: they take as long as a fifth of all C++ tests.
# shellcheck disable=SC2034 # of the scripts that source this
BOUNDS='^(Steps/BoundTable\.|DeferredUpdates\.BoundOfALanguageModel|Limits\.(APlanForTheSmallest|NoLargerLimit))'

# .ci/NAME says for which committed contents of some folders and files a target has passed.
_committed() { git rev-parse "${@/#/HEAD:}" 2>/dev/null | sha256sum | cut -c1-40; }
# noted NAME FOLDER...: whether it is those that are there. note: now it has passed for those.
noted() {
  local name=$1
  shift
  [ "$(_committed "$@")" = "$(cat ".ci/$name" 2>/dev/null)" ]
}
note() {
  local name=$1
  shift
  if git diff --quiet HEAD -- "$@" 2>/dev/null; then _committed "$@" >".ci/$name"; fi
}

# python_tests PYTHON [MARKS]: those that need no GPU, as many processes as there are cores, four at most; then, one by
# one, those by what this machine takes.
python_tests() {
  local python=$1 marks=${2:-not gpu} processes status=0
  processes=$(jobs)
  "$python" -m pytest tests/python -m "$marks and not alone" -n "$((processes < 4 ? processes : 4))" --dist worksteal ||
    status=1
  "$python" -m pytest tests/python -m "$marks and alone" || status=1
  return $status
}

# Steps of a test run: each is run to its end, whatever the others did; `finish` says how it went.
STEPS=()
FAILED=0
step() {
  local name=$1 begin=$SECONDS result=ok
  shift
  say "$name"
  # A subshell of its own: inside a condition, set -e would not hold.
  set +e
  (
    set -e
    "$@"
  )
  [ $? -eq 0 ] || {
    result=FAILED
    FAILED=1
  }
  set -e
  STEPS+=("$(printf '%-8s %5d s  %s' "$result" $((SECONDS - begin)) "$name")")
}
finish() {
  say "summary of $1"
  printf '%s\n' "${STEPS[@]}"
  if [ "$FAILED" -ne 0 ]; then
    printf '\n%s: FAILED\n' "$1"
    exit 1
  fi
  printf '\n%s: all passed\n' "$1"
}
