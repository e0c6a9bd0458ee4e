# shellcheck shell=bash
# To be sourced, after common.sh: a build on a GPU machine, in build-gpu/, with the python3 that is
# there (PYTHON names another). Needs no network and no virtual environment: what the machine lacks
# comes from .vendor/.
PYTHON=${PYTHON:-python3}
command -v "$PYTHON" >/dev/null || die "PYTHON=$PYTHON was not found"
PYTHON=$(command -v "$PYTHON")
"$PYTHON" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
  die "$PYTHON has no PyTorch that sees a GPU; name another: PYTHON=... make ..."
export PYTHONPATH="$ROOT/python${PYTHONPATH:+:$PYTHONPATH}"
if ! "$PYTHON" -c 'import pytest, xdist, expecttest' 2>/dev/null; then export PYTHONPATH="$PYTHONPATH:$ROOT/.vendor/python"; fi
export LMS_LIBRARY="$ROOT/build-gpu/lib/liblms_torch.so"

build_for_gpu() {
  build build-gpu -DPython3_EXECUTABLE="$PYTHON" -DLMS_TORCH=ON -DLMS_CUDA=ON -DLMS_LINK_PACKAGE=OFF "$@"
}
describe_machine() {
  "$PYTHON" - <<'PY'
import os, platform, torch
gpu = torch.cuda.get_device_properties(0)
print(f"GPU: {torch.cuda.device_count()} x {gpu.name}, {gpu.total_memory / 2**30:.1f} GiB")
print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}")
print(f"{os.cpu_count()} CPU cores, Linux {platform.release()}")
PY
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n '1s/^/driver /p' || true
  echo "commit ${LMS_COMMIT:-$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)}"
}
