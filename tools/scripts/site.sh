#!/usr/bin/env bash
# The site, in out/site, from the repository's pages and docstrings: every warning and every link that
# leads nowhere is an error. ARGS=serve shows it at http://127.0.0.1:8000.
source "$(dirname "$0")/common.sh"
venv=.venv-site
if ! cmp -s tools/requirements/site.txt "$venv/.lms-setup"; then
  say "installing MkDocs into $venv"
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r tools/requirements/site.txt
  cp tools/requirements/site.txt "$venv/.lms-setup"
fi
"$venv/bin/python" tools/site/stage.py out/site-sources
"$venv/bin/mkdocs" "${1:-build}" --config-file tools/site/mkdocs.yml
