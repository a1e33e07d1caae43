# Sourced by the scripts that train, which are both bash and Python: bash starts deepspeed on the
# script, and deepspeed starts it with Python.
SELF="$(cd "$(dirname "${BASH_SOURCE[-1]}")" && pwd -P)/$(basename "${BASH_SOURCE[-1]}")"
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
# A mistake in the configuration is told at once, before deepspeed takes its seconds.
"$PYTHON" -u "$SELF" --print-config "$@" > /dev/null || exit

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

# Ranks say themselves what was wrong; deepspeed would say the code and all arguments after it.
deepspeed --log_level critical ${DEEPSPEED_ARGS-} "$SELF" "$@" &
DEEPSPEED=$!
CODE=255
while [ "$CODE" -gt 128 ] && kill -0 "$DEEPSPEED" 2> /dev/null; do
  wait "$DEEPSPEED"
  CODE=$?
done
if [ "$CODE" -gt 130 ]; then
  echo "$(basename "$SELF" .sh): a rank was killed (deepspeed ended with $CODE); start again to resume" >&2
fi
exit "$CODE"
