#!/usr/bin/env bash
# Fills .vendor/ with what a test machine without a network may lack: nlohmann-json, CLI11 and toml++
# (headers), zlib, libspng, libjpeg-turbo, nifti_clib and rapidcheck (headers and library), HiGHS
# (library), GoogleTest (source), pytest, pytest-xdist and expecttest (pure Python). From this system's
# packages where they are installed, else downloaded; needs no root. At most 64 MiB.
source "$(dirname "$0")/common.sh"
tools/scripts/setup.sh
vendor=$ROOT/.vendor
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
unpacked=$fresh/packages
mkdir -p "$unpacked" "$fresh/vendor/rapidcheck/lib"

# folder_of PACKAGE PATH: where the root of an installed, or else a downloaded, package is.
folder_of() {
  if [ -e "$2" ]; then
    echo /
    return
  fi
  command -v apt-get >/dev/null || die "$1 is not installed, and there is no apt to download it"
  (cd "$fresh" && apt-get download -qq "$1" >&2 && dpkg -x "$1"_*.deb "$unpacked") ||
    die "$1 could not be downloaded"
  echo "$unpacked"
}

say "nlohmann-json"
from=$(folder_of nlohmann-json3-dev /usr/include/nlohmann/json.hpp)
mkdir -p "$fresh/vendor/json/include"
cp -r "$from/usr/include/nlohmann" "$fresh/vendor/json/include/"

say "CLI11"
from=$(folder_of libcli11-dev /usr/include/CLI/CLI.hpp)
mkdir -p "$fresh/vendor/cli11/include"
cp -r "$from/usr/include/CLI" "$fresh/vendor/cli11/include/"

say "toml++"
from=$(folder_of libtomlplusplus-dev /usr/include/toml++/toml.h)
mkdir -p "$fresh/vendor/toml/include"
cp -r "$from/usr/include/toml++" "$fresh/vendor/toml/include/"

# The shared library: Debian's static one cannot become part of a shared library.
say "zlib"
from=$(folder_of zlib1g-dev /usr/include/zlib.h)
mkdir -p "$fresh/vendor/zlib/include" "$fresh/vendor/zlib/lib"
find "$from/usr/include" -maxdepth 2 \( -name zlib.h -o -path '*-linux-gnu/zconf.h' -o \
  -path '*/include/zconf.h' \) -exec cp {} "$fresh/vendor/zlib/include/" \;
cp -L "$(ldconfig -p | sed -n 's|.*libz\.so\.1 .*=> ||p' | head -n 1)" "$fresh/vendor/zlib/lib/libz.so.1"

# Static where there is a static one; libspng.so needs only zlib and the C library.
say "libspng, libjpeg-turbo and nifti_clib"
images=$fresh/vendor/images
mkdir -p "$images/include/nifti" "$images/lib"
from=$(folder_of libspng-dev /usr/include/spng.h)
cp "$from/usr/include/spng.h" "$images/include/"
from=$(folder_of libspng0 "$(find /usr/lib -name libspng.so.0 | head -n 1)")
cp -L "$from"/usr/lib/*/libspng.so.0 "$images/lib/"
from=$(folder_of libjpeg62-turbo-dev /usr/include/jpeglib.h)
find "$from/usr/include" -maxdepth 2 \( -name 'jpeglib.h' -o -name 'jmorecfg.h' -o -name 'jerror.h' \
  -o -name 'jconfig.h' \) -exec cp {} "$images/include/" \;
cp "$from"/usr/lib/*/libjpeg.a "$images/lib/"
for package in libnifti2-dev:nifti2.h libniftiio-dev:nifti2_io.h libznz-dev:znzlib.h; do
  from=$(folder_of "${package%%:*}" "/usr/include/nifti/${package#*:}")
  cp "$from"/usr/include/nifti/*.h "$images/include/nifti/"
  find "$from"/usr/lib/*/ -maxdepth 1 \( -name libnifti2.a -o -name libznz.a \) \
    -exec cp {} "$images/lib/" \;
done

say "HiGHS"
mkdir -p "$fresh/vendor/highs"
cp -L "$(.venv/bin/python -c 'import importlib.util as u
print(u.find_spec("highspy").submodule_search_locations[0])')/libhighs.so.1" "$fresh/vendor/highs/"

say "GoogleTest"
from=$(folder_of googletest /usr/src/googletest/CMakeLists.txt)
cp -rL "$from/usr/src/googletest" "$fresh/vendor/googletest"

say "rapidcheck"
from=$(folder_of librapidcheck-dev /usr/include/rapidcheck.h)
mkdir "$fresh/vendor/rapidcheck/include"
cp -r "$from"/usr/include/rapidcheck "$from"/usr/include/rapidcheck.h "$fresh/vendor/rapidcheck/include/"
cp "$from"/usr/lib/*/librapidcheck.a "$fresh/vendor/rapidcheck/lib/"

say "pytest, pytest-xdist and expecttest"
.venv/bin/python -m pip install -q --disable-pip-version-check --only-binary :all: --no-compile \
  --target "$fresh/vendor/python" $(grep -E '^(pytest|pytest-xdist|expecttest)==' tools/requirements/dev.txt)
[ -z "$(find "$fresh/vendor/python" -name '*.so')" ] || die "these packages are not all pure Python"

size=$(du -sm "$fresh/vendor" | cut -f1)
[ "$size" -le 64 ] || die ".vendor would take $size MiB, more than 64"
rm -rf "$vendor"
mv "$fresh/vendor" "$vendor"
echo ".vendor: $size MiB"
