#!/usr/bin/env bash
# docs/reference.md, from the code. Builds first.
source "$(dirname "$0")/common.sh"
scripts/build.sh
PYTHONPATH=python .venv/bin/python scripts/reference.py
