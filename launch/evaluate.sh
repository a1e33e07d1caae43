#!/usr/bin/env bash
# Evaluates models: launch/evaluate.sh TASK --model DIR ...; TASK --help says what a task takes
set -euo pipefail
ROOT="$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." && pwd)"
PYTHON="$ROOT/.venv/bin/python"
[ -x "$PYTHON" ] || PYTHON="$(command -v python || command -v python3)"
PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m pipeline evaluate "$@"
