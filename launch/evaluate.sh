#!/usr/bin/env bash
# Evaluates models: launch/evaluate.sh TASK --model DIR ...; TASK --help says what a task takes
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
PYTHON="$ROOT/.venv/bin/python"
[ -x "$PYTHON" ] || PYTHON="$(command -v python || command -v python3)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
TASK="${1-}"
MODULE="${TASK//-/_}"
if [ -z "$TASK" ] || ! { [ -f "$ROOT/pipeline/tasks/$MODULE.py" ] || [ -f "$ROOT/pipeline/tasks/$MODULE/__main__.py" ]; }; then
  echo "evaluate: task '$TASK' does not exist; try: launch/evaluate.sh perplexity --help" >&2
  exit 2
fi
shift
exec "$PYTHON" -m "pipeline.tasks.$MODULE" "$@"
