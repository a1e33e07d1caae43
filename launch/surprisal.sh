#!/usr/bin/env bash
# Surprisal of each word in bits, tab-separated: launch/surprisal.sh --model DIR FILE|-
set -euo pipefail
ROOT="$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." && pwd)"
PYTHON="$ROOT/.venv/bin/python"
[ -x "$PYTHON" ] || PYTHON="$(command -v python || command -v python3)"
PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m pipeline surprisal "$@"
