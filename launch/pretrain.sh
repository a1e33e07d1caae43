#!/usr/bin/env bash
""":"
# Both bash and Python: bash starts deepspeed on this file, and deepspeed starts it with Python.
SELF="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)/$(basename "${BASH_SOURCE[0]}")"
VENV="$(dirname "$(dirname "$SELF")")/.venv/bin"
if ! command -v deepspeed > /dev/null && [ -x "$VENV/deepspeed" ]; then PATH="$VENV:$PATH"; fi
PYTHON="$(command -v python || command -v python3)"

# A rank of torchrun, mpirun or srun, or a question that needs no ranks.
if [ -n "${RANK-}${OMPI_COMM_WORLD_RANK-}${PMI_RANK-}${SLURM_STEP_NUM_TASKS-}" ]; then
  exec "$PYTHON" -u "$SELF" "$@"
fi
for argument in "$@"; do
  case "$argument" in -h | --help | --print-config) exec "$PYTHON" -u "$SELF" "$@" ;; esac
done

children() { cat "/proc/$1/task/$1/children" 2> /dev/null || pgrep -P "$1"; }

# deepspeed does not pass signals on: the ranks get them from here, so that they save and end.
pass_on() {
  local launcher rank
  for launcher in $(children "$DEEPSPEED"); do
    for rank in $(children "$launcher"); do kill -s "$1" "$rank" 2> /dev/null; done
  done
}
trap 'pass_on TERM' TERM
trap 'pass_on USR1' USR1
trap ':' INT # the terminal sends it to all processes itself

deepspeed -q ${DEEPSPEED_ARGS-} "$SELF" "$@" &
DEEPSPEED=$!
CODE=255
while [ "$CODE" -gt 128 ] && kill -0 "$DEEPSPEED" 2> /dev/null; do
  wait "$DEEPSPEED"
  CODE=$?
done
exit "$CODE"
: << "# end of Python"
":"""

import os
import sys

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from pipeline.__main__ import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]]))
# end of Python
