#!/usr/bin/env bash
# clang-tidy over the sources, or over the files named: tidy.sh [file.cpp...]. CLANG_TIDY names the
# program.
source "$(dirname "$0")/common.sh"
tidy=${CLANG_TIDY:-clang-tidy}
command -v "$tidy" >/dev/null || die "$tidy was not found: install clang-tidy, or set CLANG_TIDY"
scripts/build.sh >/dev/null
if [ $# -eq 0 ]; then
  mapfile -t found < <(find src adapters tests/core -name '*.cpp' | sort)
  set -- "${found[@]}"
fi
# Files that this build leaves out (the other backend) have no command to check them with.
files=()
for file in "$@"; do
  if grep -qF "/$file\"" build/compile_commands.json; then files+=("$file"); fi
done
[ ${#files[@]} -gt 0 ] || die "no file of the build was named"
printf '%s\n' "${files[@]}" | xargs -P "$(jobs)" -n 1 "$tidy" -p build --quiet --warnings-as-errors='*'
echo "clang-tidy: ${#files[@]} files, clean"
