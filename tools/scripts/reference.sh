#!/usr/bin/env bash
# docs/reference.md, from the code. Builds first.
source "$(dirname "$0")/common.sh"
tools/scripts/build.sh
PYTHONPATH=python .venv/bin/python tools/scripts/reference.py
