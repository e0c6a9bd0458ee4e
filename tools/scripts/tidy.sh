#!/usr/bin/env bash
# clang-tidy over the sources, or over the files named: tidy.sh [file.cpp...]. CLANG_TIDY names the
# program.
source "$(dirname "$0")/common.sh"
tidy=${CLANG_TIDY:-clang-tidy}
command -v "$tidy" >/dev/null || die "$tidy was not found: install clang-tidy, or set CLANG_TIDY"
tools/scripts/setup.sh
export PATH="$ROOT/.venv/bin:$PATH"
# A command for each file, which build/ may not have; nothing is built. The compiler's precompiled
# headers are not clang's.
folder=build/tidy
cmake -S . -B "$folder" -G Ninja -DPython3_EXECUTABLE="$ROOT/.venv/bin/python" -DLMS_TORCH=ON \
  -DLMS_UNITY=OFF -DLMS_LINK_PACKAGE=OFF >/dev/null
sed -i -E 's/ -Winvalid-pch//; s/ -include [^ ]*cmake_pch\.hxx//' "$folder/compile_commands.json"
if [ $# -eq 0 ]; then
  mapfile -t found < <(find src adapters lab/datasets lab/zoo lab/train tests/core tests/sim -name '*.cpp' | sort)
  set -- "${found[@]}"
fi
# Files that this build leaves out (the other backend) have no command to check them with.
files=()
for file in "$@"; do
  if grep -qF "/$file\"" "$folder/compile_commands.json"; then files+=("$file"); fi
done
[ ${#files[@]} -gt 0 ] || die "no file of the build was named"
printf '%s\n' "${files[@]}" | xargs -P "$(jobs)" -n 1 "$tidy" -p "$folder" --quiet --warnings-as-errors='*' \
  --extra-arg=-Wno-unknown-warning-option
echo "clang-tidy: ${#files[@]} files, clean"
