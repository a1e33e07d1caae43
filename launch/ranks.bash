# Sourced by pretrain.sh and finetune.sh, which are both bash and Python: bash starts deepspeed on the
# script, and deepspeed runs it with Python.
SELF="$(cd "$(dirname "${BASH_SOURCE[-1]}")" && pwd -P)/$(basename "${BASH_SOURCE[-1]}")"
VENV="$(dirname "$(dirname "$SELF")")/.venv/bin"
if ! command -v deepspeed > /dev/null && [ -x "$VENV/deepspeed" ]; then PATH="$VENV:$PATH"; fi
PYTHON="$(command -v python || command -v python3)"

# A rank of torchrun, mpirun or srun runs the script at once; so does --help. A single task of srun is
# not a rank: it may be an interactive shell (srun --pty bash). RANK without LOCAL_RANK counts
# machines (Kubeflow).
if { [ -n "${RANK-}" ] && [ -n "${LOCAL_RANK-}" ]; } ||
  [ -n "${OMPI_COMM_WORLD_RANK-}" ] || [ "${PMI_SIZE:-1}" != 1 ] ||
  { [ "${SLURM_STEP_NUM_TASKS:-1}" != 1 ] && [ -z "${SLURM_PTY_PORT-}" ]; }; then
  exec "$PYTHON" -u "$SELF" "$@"
fi
for argument in "$@"; do
  case "$argument" in -h | --help | --print-config) exec "$PYTHON" -u "$SELF" "$@" ;; esac
done
# Check the configuration before deepspeed, which takes seconds to start.
export DEEPSPEED_ARGS="${DEEPSPEED_ARGS-}"
"$PYTHON" -u "$SELF" --print-config "$@" > /dev/null || exit

children() { cat "/proc/$1/task/$1/children" 2> /dev/null || pgrep -P "$1"; }

# deepspeed does not forward signals, or gives the ranks 30 seconds. It runs in its own process group,
# and the ranks get signals from here, so that they can save. Before the ranks exist there is nothing
# to save.
pass_on() {
  local launcher rank ranks=
  for launcher in $(children "$DEEPSPEED"); do
    for rank in $(children "$launcher"); do ranks="$ranks $rank"; done
  done
  if [ -n "$ranks" ]; then kill -s "$1" $ranks 2> /dev/null; else kill -TERM -- "-$DEEPSPEED" 2> /dev/null; fi
}
INTERRUPTED= TERMINATED=
trap 'TERMINATED=1; pass_on TERM' TERM
trap 'pass_on HUP' HUP # the terminal closed: the ranks save and continue
trap 'pass_on USR1' USR1
trap 'INTERRUPTED=1; pass_on INT' INT

# Ranks print their own errors; deepspeed's log would only repeat exit code and arguments. deepspeed
# reads MASTER_ADDR and MASTER_PORT only as options.
set -m
deepspeed --log_level critical ${MASTER_ADDR:+--master_addr "$MASTER_ADDR"} \
  ${MASTER_PORT:+--master_port "$MASTER_PORT"} $DEEPSPEED_ARGS "$SELF" "$@" &
DEEPSPEED=$!
set +m
while kill -0 "$DEEPSPEED" 2> /dev/null; do
  wait "$DEEPSPEED" # or until a signal comes
done
wait "$DEEPSPEED"
CODE=$?
if [ -n "$INTERRUPTED" ] && [ "$CODE" -gt 130 ]; then
  echo "$(basename "$SELF" .sh): interrupted" >&2
  CODE=130
elif [ -n "$TERMINATED" ] && { [ "$CODE" = 143 ] || [ "$CODE" = 241 ]; }; then # -15 in a byte
  echo "$(basename "$SELF" .sh): stopped by SIGTERM before the ranks had begun; nothing was changed" >&2
  CODE=143
elif [ "$CODE" -gt 130 ]; then
  echo "$(basename "$SELF" .sh): a rank was killed (deepspeed ended with $CODE); start again to resume" >&2
fi
exit "$CODE"
