#!/usr/bin/env bash
# Converts models: to-hf CHECKPOINT OUT, from-hf MODEL RUN.yaml, from-reference model.bin OUT, inspect PATH; --help
set -euo pipefail
ROOT="$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." && pwd)"
PYTHON="$ROOT/.venv/bin/python"
[ -x "$PYTHON" ] || PYTHON="$(command -v python || command -v python3)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m pipeline convert "$@"
