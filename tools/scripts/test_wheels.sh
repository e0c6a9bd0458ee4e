#!/usr/bin/env bash
# Tries wheels as their users do: test_wheels.sh [WHEEL ...]   (all of dist/)
# For each a new virtual environment with the PyTorch it wants, and no compiler on the PATH: it must be
# installed, and have begun to run planned steps, within a minute of PyTorch being there.
#   TORCH_SITE  a site-packages that has this PyTorch already (not to download it again); PYTHON: its Python
source "$(dirname "$0")/common.sh"
PYTHON=${PYTHON:-python3}
[ $# -gt 0 ] || set -- dist/*.whl
[ -f "$1" ] || die "there is no wheel: make wheels"

# in_venv COMMAND...: with nothing of this shell's surroundings, and nothing but the venv's programs.
in_venv() { env -i PATH="$venv/bin" HOME="$venv" OMP_WAIT_POLICY=PASSIVE LMS_DEVICE=cpu "$@"; }

try() {
  local wheel=$1 release venv begin
  release=$(sed -E 's/.*\+torch([0-9.]+)-.*/\1/' <<<"$wheel")
  venv=$(mktemp -d)
  # shellcheck disable=SC2064 # now, not then
  trap "rm -rf '$venv'" EXIT
  "$PYTHON" -m venv "$venv"
  if [ -n "${TORCH_SITE:-}" ]; then
    "$venv/bin/python" -c "import sysconfig; open(sysconfig.get_path('purelib') + '/torch.pth', 'w').write('$TORCH_SITE')"
    "$venv/bin/python" -m pip uninstall -qy setuptools # there may be a newer one, which torch wants
  else
    "$venv/bin/python" -m pip install -q --disable-pip-version-check "torch==$release.*"
  fi

  begin=$SECONDS
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-index "$wheel"
  in_venv lms run --log info --limit 100MiB examples/quickstart/train.py 2>"$venv/log" | tee "$venv/managed"
  grep "under a plan" "$venv/log"
  if ! grep -qE "[1-9][0-9]* steps ran under a plan" "$venv/log"; then die "no step was planned"; fi
  echo "installed and planned after $((SECONDS - begin)) s"
  [ $((SECONDS - begin)) -le "${MOST_SECONDS:-60}" ] || die "that is more than a minute"

  in_venv python examples/quickstart/train.py >"$venv/plain"
  diff <(grep -o "loss [^ ]*" "$venv/plain") <(grep -o "loss [^ ]*" "$venv/managed") >&2 || die "the losses differ"
  in_venv lms --version
  in_venv lms plan tests/golden/recorded_unet3d_bf16_192.json.gz --limit 50% --seconds 0.2 | head -n 6
  in_venv lms trace tests/golden/recorded_unet3d_bf16_192.json.gz | head -n 3
  if in_venv lms foo 2>"$venv/log"; then die "lms foo is no command"; fi
  grep -q "there is no command 'foo'" "$venv/log"
  (cd "$venv" && in_venv python -m torch_lms --device cpu --directory "$venv" | tail -n 1)
  # The library for PyTorch without CUDA works in this one as well.
  library=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_lms/lib/cpu/liblms_torch.so
  if readelf -d "$library" | grep -E "NEEDED.*(cuda|cudart)"; then die "it needs CUDA"; fi
  # A PyTorch that has been raised beneath: what to install, and not the loader's words.
  if in_venv python -c 'import torch; torch.__version__ = "2.99.0"
import torch_lms; torch_lms.enable(device="cpu")' 2>"$venv/log"; then die "another PyTorch was accepted"; fi
  grep -q "pip install 'torch==$release.\*'" "$venv/log"
}

for wheel in "$@"; do
  step "$(basename "$wheel")" try "$(realpath "$wheel")"
done
finish "make test-wheels"
