#!/usr/bin/env bash
# venv_on_top.sh VENV REQUIREMENTS: a virtual environment that sees what .venv has (PyTorch, pytest), and
# has the packages of REQUIREMENTS beside it. Quick when there is nothing to do.
source "$(dirname "$0")/common.sh"
venv=$1 requirements=$2 stamp=$1/.lms-setup
tools/scripts/setup.sh
if cat tools/requirements/torch.txt "$requirements" | cmp -s - "$stamp"; then exit 0; fi
say "installing $requirements into $venv"
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$below" >"$own/below.pth"
# With the pinned PyTorch among the requirements nothing replaces it.
"$venv/bin/python" -m pip install -q --disable-pip-version-check --prefer-binary \
  -r tools/requirements/torch.txt -r "$requirements"
cat tools/requirements/torch.txt "$requirements" >"$stamp"
