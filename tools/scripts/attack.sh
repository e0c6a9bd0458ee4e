#!/usr/bin/env bash
# Random programs under LMS against plain PyTorch; sets up and builds first. ARGS: see --help.
source "$(dirname "$0")/common.sh"
tools/scripts/build.sh
PYTHONPATH="tests/python:python" exec .venv/bin/python -m attack "$@"
