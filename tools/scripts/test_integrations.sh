#!/usr/bin/env bash
# Tests torch_lms in trainers of others, on the CPU, with the packages themselves: they are installed in
# a virtual environment of their own, on top of .venv's PyTorch. With --more also those that need other
# environments, two, of 3.5 GiB. Builds first. What else is given is pytest's.
source "$(dirname "$0")/common.sh"
more=
if [ "${1:-}" = --more ]; then
  more=yes
  shift
fi
tests=tests/python/test_integrations.py
# shellcheck disable=SC2046 # nothing is no option
tools/scripts/build.sh $(whole_build build)
tools/scripts/venv_on_top.sh .venv-integrations tools/requirements/integrations.txt
# A test that is skipped for want of a package would say nothing here.
KERAS_BACKEND=torch .venv-integrations/bin/python -c "import accelerate, datasets, keras, lightning, tensorboard, timm, transformers, trl"
step "integrations" .venv-integrations/bin/python -m pytest $tests tests/python/test_bench_trainers.py -v "$@"
if [ "$more" ]; then
  tools/scripts/venv_on_top.sh .venv-started tools/requirements/started.txt
  .venv-started/bin/python -c "import ignite, monai, tensorboard, ultralytics"
  step "ultralytics, MONAI" .venv-started/bin/python -m pytest $tests -k "ultralytics or monai" -v "$@"
  tools/scripts/venv_on_top.sh .venv-started-more tools/requirements/started-more.txt
  .venv-started-more/bin/python -c "import axolotl, nnunetv2, tensorboard"
  step "nnU-Net, axolotl" .venv-started-more/bin/python -m pytest $tests -k "nnunet or axolotl" -v "$@"
fi
finish "make test-integrations"
