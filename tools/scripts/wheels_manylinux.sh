#!/usr/bin/env bash
# `make wheels` in the image manylinux_2_28, for wheels that also run on RHEL 8 and 9 and their relatives:
# wheels_manylinux.sh [RELEASE ...]. Needs Docker and a network; not run by continuous integration.
source "$(dirname "$0")/common.sh"
command -v docker >/dev/null || die "docker is missing"
# Its compiler is new and its libraries are old. CLI11 is of EPEL.
docker run --rm -v "$ROOT:/lms" -w /lms -e JOBS -e PYTHON=/opt/python/cp311-cp311/bin/python \
  quay.io/pypa/manylinux_2_28_x86_64 bash -c '
    set -e
    dnf install -y -q epel-release
    dnf install -y -q cli11-devel zlib-devel
    git config --global --add safe.directory /lms
    tools/scripts/wheels.sh "$@"' wheels "$@"
