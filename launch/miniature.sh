#!/usr/bin/env bash
# The paper in miniature on two CPU cores: `make miniature` (docs/miniature.md).
# INPUT=path: your own text (a file or a folder of .txt) instead of the State of the Union.
# TREES=folder with train.txt, valid.txt, test.txt: grammar induction.  SUITES=folder: SyntaxGym.
# MODELS="gpst gpt2": only these, or gpst_no_last_word.  SEEDS="0 1 2": of gpst and gpt2; the others have the first.
# OUTPUT=folder: data/ and runs/ go there.  SETTINGS="key=value ...": for every pre-training.
# LOCAL_SIZE=1: one rank instead of two, which leaves a core to others.
# Run again, it goes on where it stopped; what is finished is not done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/typed.bash

MODELS=${MODELS:-gpst gpt2 gpst_paper gpst_no_gradient_stop gpst_no_surrogate gpt2_5_layers}
read -ra SEEDS <<< "${SEEDS:-0 1 2}"
read -ra SETTINGS <<< "${SETTINGS:-}"
shopt -s nullglob
INPUT=${INPUT:-$(speeches)}
OUTPUT=${OUTPUT:+${OUTPUT%/}/}
DATA=${OUTPUT}data/miniature RUNS=${OUTPUT}runs/miniature
BLOCKS=(--split-blank-lines) # paragraphs are the documents

overrides() { # what a model changes in its configuration
  local paper=(structure.chart_order=parser model.composition.window=2 model.last_word=false)
  case $1 in
    gpst | gpt2) ;;
    gpst_no_last_word) echo model.last_word=false ;;
    gpst_paper) echo "${paper[@]}" ;;
    gpst_no_gradient_stop) echo "${paper[@]}" model.gradient_stop=false ;;
    gpst_no_surrogate) echo "${paper[@]}" model.surrogate=false ;;
    gpt2_5_layers) echo model.num_layers=5 ;;
    *) echo "MODELS: $1 is unknown; known are gpst gpt2 gpst_no_last_word gpst_paper gpst_no_gradient_stop gpst_no_surrogate gpt2_5_layers" >&2; return 2 ;;
  esac
}

run_config() { case $1 in gpt2*) echo configs/run/miniature_gpt2.yaml ;; *) echo configs/run/miniature.yaml ;; esac; }

settings() { # MODEL SEED: of its pre-training, a line each
  local changed
  changed=$(overrides "$1") || return
  # shellcheck disable=SC2086 # words by intention
  printf '%s\n' --config "$(run_config "$1")" "run_dir=$RUNS/$1/seed-$2" "seed=$2" "data.path=$DATA" $changed "${SETTINGS[@]}"
}

pretrain() { # MODEL SEED: a run, exported
  local run=$RUNS/$1/seed-$2 all
  if [ -f "$run/exported/config.json" ]; then echo "$run: pre-trained already"; return; fi
  mapfile -t all < <(settings "$1" "$2")
  run DS_ACCELERATOR=cpu LOCAL_SIZE="${LOCAL_SIZE:-2}" deepspeed -q launch/pretrain.sh "${all[@]}"
  export_run "$run" "${all[@]}"
}

induce() { # MODEL SEED: goes on, on the words of a treebank, and scores its trees
  local run=$RUNS/$1/seed-$2 order=()
  if [ -f "$run/trees/results.json" ]; then echo "$run/trees: fine-tuned already"; return; fi
  case $1 in gpst | gpst_no_last_word) order=("structure.punctuation_data=$DATA") ;; *) order=(structure.chart_order=parser structure.punctuation_data=null) ;; esac
  run DS_ACCELERATOR=cpu LOCAL_SIZE="${LOCAL_SIZE:-2}" deepspeed -q launch/finetune.sh --config configs/finetune/miniature.yaml \
    "init=$run/exported" "run_dir=$run/trees" "${order[@]}" \
    "grammar_induction.train=$TREES/train.txt" "grammar_induction.valid=$TREES/valid.txt" "grammar_induction.test=$TREES/test.txt"
}

evaluate() { # MODEL SEED...: perplexity and suites, all seeds together; what is known is not computed again
  local model=$1 exported=() baselines=("$RUNS"/gpt2*/seed-*/exported) seed; shift
  if [ ${#baselines[@]} -gt 0 ]; then baselines=(--gpt2 "${baselines[@]}"); fi
  for seed in "$@"; do exported+=("$RUNS/$model/seed-$seed/exported"); done
  case $model in
    gpst*) # beside the baselines, whose number is that of their own row
      run bash launch/evaluate.sh perplexity --model "${exported[@]}" "${baselines[@]}" \
        --data "$DATA" --beam 20 --context-tokens 256 --max-contexts 24 --output "$RUNS/$model/perplexity"
      ;;
  esac
  if [ -n "${SUITES:-}" ]; then
    run bash launch/evaluate.sh syntactic_generalization --model "${exported[@]}" --suites "$SUITES" --beam 20 \
      --output "$RUNS/$model/suites"
  fi
}

# What can be wrong is said before the hours.
for seed in "${SEEDS[@]}"; do
  if [[ ! $seed =~ ^[0-9]+$ ]]; then echo "SEEDS: $seed is no whole number" >&2; exit 2; fi
done
TREES="${TREES:-}" SUITES="${SUITES:-}" python -m launch.miniature || exit
for model in $MODELS; do
  for seed in "${SEEDS[@]}"; do
    all=$(settings "$model" "$seed")
    mapfile -t all <<< "$all"
    bash launch/pretrain.sh --print-config "${all[@]}" > /dev/null
    run=$RUNS/$model/seed-$seed
    if [ -f "$run/finished.yaml" ] && ! exported_with "$run" "${all[@]}"; then
      echo "SETTINGS: $run was trained with others, which are in its finished.yaml; give those, or another OUTPUT" >&2; exit 2
    fi
  done
done

# Both say so where they are complete, and refuse another input.
run python -m data_prep tokenizer --source text --input "$INPUT" "${BLOCKS[@]}" --kind wordpiece --vocab-size 8192 --output "$DATA-tokenizer"
run python -m data_prep build --source text --input "$INPUT" "${BLOCKS[@]}" --tokenizer "$DATA-tokenizer" \
  --output "$DATA" --validation-fraction 0.02 --workers 2

for seed in "${SEEDS[@]}"; do
  for model in $MODELS; do
    case $model in gpst | gpt2) ;; *) if [ "$seed" != "${SEEDS[0]}" ]; then continue; fi ;; esac
    pretrain "$model" "$seed"
    case $model in gpst*) if [ -n "${TREES:-}" ]; then induce "$model" "$seed"; fi ;; esac
  done
done
for model in $MODELS; do
  case $model in gpst | gpt2) evaluate "$model" "${SEEDS[@]}" ;; *) evaluate "$model" "${SEEDS[0]}" ;; esac
done
run python -m pipeline report "$RUNS" --output "$RUNS/report"
