#!/usr/bin/env bash
# The demo: sets up, builds, and trains the brain. demo.sh [arguments of examples/brain/demo.py]
source "$(dirname "$0")/common.sh"
# shellcheck disable=SC2046 # nothing is no option
WITH_TESTS=0 tools/scripts/build.sh -DLMS_TESTS=OFF $(whole_build build)
export PYTHONPATH="$ROOT/python"
exec .venv/bin/python examples/brain/demo.py "$@"
