# Sourced by pretrain.sh and finetune.sh, which are both bash and Python: bash starts deepspeed on the
# script, and deepspeed runs it with Python.
SELF="$(cd "$(dirname "${BASH_SOURCE[-1]}")" && pwd -P)/$(basename "${BASH_SOURCE[-1]}")"
NAME="$(basename "$SELF" .sh)"
DEEPSPEED= RANKS_KNOW= TOLD_TO_END= INTERRUPTED= TERMINATED= TIME_IS_UP=

say() { echo "$NAME: $1" >&2; }
ends_early() { # SIGNAL: before there are ranks
  case "$1" in
    INT) say interrupted; exit 130 ;;
    TERM) say "stopped by SIGTERM before the ranks had begun; nothing was changed"; exit 143 ;;
    USR1) say "stopped by SIGUSR1 before the ranks had begun; nothing was changed"; exit 0 ;;
  esac
}
on_signal() { if [ -n "$DEEPSPEED" ]; then pass_on "$1"; else ends_early "$1"; fi; }
trap 'TERMINATED=1; on_signal TERM' TERM
trap 'TIME_IS_UP=1; on_signal USR1' USR1
trap 'INTERRUPTED=1; on_signal INT' INT

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

# --hosts FILE: the machines that deepspeed reaches by ssh.
export DEEPSPEED_ARGS="${DEEPSPEED_ARGS-}"
ARGUMENTS=()
while [ $# -gt 0 ]; do
  case "$1" in
    --hosts | --hosts=*)
      HOSTS="${1#--hosts}" HOSTS="${HOSTS#=}"
      if [ "$1" = --hosts ]; then HOSTS="${2-}"; shift; fi
      if [ -z "$HOSTS" ]; then say "command line: --hosts needs a file with a line HOST slots=N for each machine"; exit 2; fi
      DEEPSPEED_ARGS="--hostfile $HOSTS --force_multi $DEEPSPEED_ARGS" ;;
    *) ARGUMENTS+=("$1") ;;
  esac
  if [ $# -gt 0 ]; then shift; fi
done
# Check the configuration before deepspeed, which takes seconds to start.
"$PYTHON" -u "$SELF" --print-config "${ARGUMENTS[@]}" > /dev/null || exit

WORKERS= DS_ENV_FILE="${DS_ENV_FILE-}"
case " $DEEPSPEED_ARGS " in
  *" --no_ssh "* | *" --launcher"*) ;;
  *" --hostfile"* | *" -H"*) . "$(dirname "${BASH_SOURCE[0]}")/hosts.bash" ;;
esac

children() { cat "/proc/$1/task/$1/children" 2> /dev/null || pgrep -P "$1"; }

is_rank() { grep -qza -e '^--local_rank=' "/proc/$1/cmdline" 2> /dev/null; }
# Ranks whose launcher has ended before them: what is left of deepspeed's process group, without the
# processes that ranks have started.
ranks_left() {
  local file line
  for file in /proc/[0-9]*/stat; do
    read -r line 2> /dev/null < "$file" || continue
    # shellcheck disable=SC2086 # state, parent, process group
    set -- ${line##*) }
    if [ "${3-}" = "$DEEPSPEED" ] && [ "$1" != Z ] && ! is_rank "$2"; then
      line="${file#/proc/}" line="${line%/stat}"
      if is_rank "$line"; then echo "$line"; fi
    fi
  done
} 2> /dev/null

# deepspeed does not forward signals, or gives the ranks 30 seconds. It runs in its own process group,
# and the ranks get signals from here, so that they can save. Before the ranks exist there is nothing
# to save.
pass_on() {
  local launcher rank ranks=
  if [ -n "$WORKERS" ]; then
    if signal_workers "$1"; then RANKS_KNOW=1; return; fi
  else
    for launcher in $(children "$DEEPSPEED"); do
      for rank in $(children "$launcher"); do ranks="$ranks $rank"; done
    done
  fi
  if [ -z "$ranks" ]; then ranks=$(ranks_left); fi
  if [ -n "$ranks" ]; then
    RANKS_KNOW=1
    kill -s "$1" $ranks 2> /dev/null
  elif [ "$1" != HUP ]; then
    TOLD_TO_END="$1"
    kill -TERM -- "-$DEEPSPEED" 2> /dev/null
  fi
}
trap 'pass_on HUP' HUP # the terminal closed: the ranks save and continue

# Ranks print their own errors; deepspeed's log would only repeat exit code and arguments. deepspeed
# reads MASTER_ADDR and MASTER_PORT only as options.
set -m
deepspeed --log_level critical ${MASTER_ADDR:+--master_addr "$MASTER_ADDR"} \
  ${MASTER_PORT:+--master_port "$MASTER_PORT"} $DEEPSPEED_ARGS "$SELF" "${ARGUMENTS[@]}" &
DEEPSPEED=$!
set +m
while kill -0 "$DEEPSPEED" 2> /dev/null; do
  wait "$DEEPSPEED" # or until a signal comes
done
wait "$DEEPSPEED"
CODE=$?
if [ "$CODE" -lt 0 ]; then CODE=143; fi # a signal to this shell hid with which deepspeed ended
# A signal to all processes of a run (pkill -f, a batch system) ends deepspeed at once, while ranks save.
if [ -n "$(ranks_left)" ]; then
  say "deepspeed has ended before its ranks, which may be saving: waiting for them"
  while [ -n "$(ranks_left)" ]; do sleep 0.5; done
  RANKS_KNOW=1
  if [ "$CODE" -eq 241 ]; then CODE=143; fi
fi
# With pdsh deepspeed ends with 1 when it is told to, also while the other machines load Python.
if [ "$CODE" -eq 1 ] && [ -n "$WORKERS" ] && [ -n "$TOLD_TO_END" ] && [ -z "$RANKS_KNOW" ]; then
  ends_early "$TOLD_TO_END"
fi
# Without a word of the ranks: deepspeed, or a rank in its first instants, which ends with minus the
# signal in a byte.
if [ "$CODE" -gt 130 ] && [ -n "$INTERRUPTED" ]; then ends_early INT; fi
case "${TERMINATED:+TERM}${TIME_IS_UP:+USR1} $CODE $RANKS_KNOW" in
  "TERM 143 " | "TERM 241 "*) ends_early TERM ;;
  "USR1 143 " | "USR1 241 "* | "USR1 246 "*) ends_early USR1 ;;
  "TERM 143 1") ;; # the ranks have said it
  *) if [ "$CODE" -gt 130 ]; then say "a rank was killed (deepspeed ended with $CODE); start again to resume"; fi ;;
esac
exit "$CODE"
