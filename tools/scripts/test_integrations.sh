#!/usr/bin/env bash
# Tests torch_lms in trainers of others, on the CPU, with the packages themselves: they are installed in
# a virtual environment of their own, on top of .venv's PyTorch. Builds first.
source "$(dirname "$0")/common.sh"
# shellcheck disable=SC2046 # nothing is no option
tools/scripts/build.sh $(whole_build build)
tools/scripts/venv_on_top.sh .venv-integrations tools/requirements/integrations.txt
# A test that is skipped for want of a package would say nothing here.
KERAS_BACKEND=torch .venv-integrations/bin/python -c "import accelerate, datasets, keras, lightning, tensorboard, timm, transformers, trl"
step "integrations" .venv-integrations/bin/python -m pytest tests/python/test_integrations.py tests/python/test_bench_trainers.py -v "$@"
finish "make test-integrations"
