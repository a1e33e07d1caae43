# Sourced by ranks.bash where deepspeed reaches other machines by ssh: what they get from here, and
# signals to their ranks. deepspeed itself passes on PYTHON*, NCCL* and little else, and puts the
# arguments before the other machines' shells as they are.
HOSTFILE="$(sed -E 's/.* (--hostfile|-H)[ =]?([^ ]+).*/\2/' <<< " $DEEPSPEED_ARGS ")"
WORKERS="$(sed -nE 's/^[ \t]*([^ \t#]+)[ \t]+slots=.*/\1/p' "$HOSTFILE" | paste -sd, -)"

passed_on() { # NAME=VALUE of variables that ranks or their libraries read; no passwords
  local name
  for name in $(compgen -e | grep -vE '(KEY|TOKEN|SECRET|PASSWORD)' |
    grep -E '^(PATH|VIRTUAL_ENV|CONDA_PREFIX|LD_LIBRARY_PATH|CUDA_HOME|TZ|LANG|LC_ALL|DS_ACCELERATOR|DEEPSPEED_TIMEOUT|(GPST|GLOO|NCCL|OMP|KMP|MKL|NUMBA|TORCH|PYTORCH|TRITON|HF)_.*)$'); do
    # deepspeed writes it between double quotes
    case "${!name}" in *$'\n'*) ;; *) printf '%s=%s\n' "$name" "$(sed 's/[\\"$`]/\\&/g' <<< "${!name}")" ;; esac
  done
  # The user's own go before; an empty line or a comment would be a traceback of deepspeed.
  sed -n '/^[^#]*=/p' ~/.deepspeed_env .deepspeed_env 2> /dev/null
}
export DS_ENV_FILE="${DS_ENV_FILE:-$(mktemp)}"
if [ ! -s "$DS_ENV_FILE" ]; then
  passed_on > "$DS_ENV_FILE"
  trap 'rm -f "$DS_ENV_FILE"' EXIT
fi

# ssh would wait for a machine without power or network for ever, after the ranks have ended. Of two
# options of a name ssh takes the first.
export PDSH_SSH_ARGS_APPEND="${PDSH_SSH_ARGS_APPEND-} -o ServerAliveInterval=10 -o ServerAliveCountMax=4"

# The ranks' command lines, as a regular expression for pkill.
literally() { sed -E 's/[][\\.*^$+?(){}|]/\\&/g' <<< "$*"; }
RANK="$(literally "$SELF") --local_rank=[0-9]+ $(literally "${ARGUMENTS[@]}")"
RANK="${RANK% }"
signal_workers() { # SIGNAL: fails where no rank got it
  [ -n "$(PDSH_RCMD_TYPE=ssh pdsh -w "$WORKERS" "pkill -$1 -e -f -- $(printf %q "$RANK")" 2> /dev/null)" ]
}

# For the other machines' shells. deepspeed puts arguments with a space between double quotes.
for argument in "${!ARGUMENTS[@]}"; do
  case "${ARGUMENTS[$argument]}" in
    *" "*) ARGUMENTS[argument]="$(sed 's/[\\$`]/\\&/g' <<< "${ARGUMENTS[$argument]}")" ;;
    *) ARGUMENTS[argument]="$(printf %q "${ARGUMENTS[$argument]}")" ;;
  esac
done
