#!/usr/bin/env bash
# Trees of sentences, one a line: launch/parse.sh --model DIR [--method inside|left-to-right]
# [--beam N] [--format ascii|bracket|ptb|json|svg|png] FILE|-
set -euo pipefail
ROOT="$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." && pwd)"
PYTHON="$ROOT/.venv/bin/python"
[ -x "$PYTHON" ] || PYTHON="$(command -v python || command -v python3)"
PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m pipeline parse "$@"
