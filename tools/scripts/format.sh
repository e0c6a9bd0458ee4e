#!/usr/bin/env bash
# Formats the C++ sources; with --check changes nothing, and fails if a file is not formatted or a
# Python file breaks a rule of style.
source "$(dirname "$0")/common.sh"
tools/scripts/setup.sh
mode=${1:-}
sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -co --exclude-standard -- '*.cpp' '*.h' | while read -r file; do
      [ ! -f "$file" ] || echo "$file"
    done
  else
    find include src adapters lab tests examples tools -name '*.cpp' -o -name '*.h'
  fi
}
mapfile -t files < <(sources)
case $mode in
  "")
    .venv/bin/clang-format -i "${files[@]}"
    .venv/bin/ruff check --fix .
    ;;
  --check)
    step "clang-format, ${#files[@]} files" .venv/bin/clang-format --dry-run --Werror "${files[@]}"
    step "ruff" .venv/bin/ruff check .
    finish "make check-format"
    ;;
  *) die "format.sh [--check]" ;;
esac
