#!/usr/bin/env bash
# Installs requirements.lock: install.sh PYTHON [options and packages, as pip takes them] (make setup).
# uv takes a third of pip's time. It does not read pip's settings: they are handed over. Where uv is
# not to be had or fails, pip installs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1; shift

setting() { # of pip, from its variables or its files
  local variable=${1//-/_}; variable=PIP_${variable^^}
  echo "${!variable:-$("$python" -m pip config get "global.$1" 2> /dev/null || true)}"
}

quickly() { # fails without a word: pip says what is wrong
  local options=(--quiet --python "$python" --index-strategy unsafe-best-match) index cert where
  "$python" -m pip install --quiet "$(grep '^uv==' requirements.lock)" || return
  index=$(setting index-url) cert=$(setting cert)
  if [ -n "$index" ]; then options+=(--default-index "$index"); fi
  if [ -n "$cert" ]; then export SSL_CERT_FILE=$cert; fi
  for where in $(setting extra-index-url); do options+=(--index "$where"); done
  for where in $(setting find-links); do options+=(--find-links "$where"); done
  "$python" -m uv pip install "${options[@]}" --requirement requirements.lock "$@"
}

quickly "$@" 2> /dev/null ||
  "$python" -m pip install --quiet --disable-pip-version-check --no-compile --requirement requirements.lock "$@"
