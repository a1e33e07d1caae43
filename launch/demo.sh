#!/usr/bin/env bash
# The whole path on real text, from raw text to a model that parses and writes: `make demo`.
# It goes on from the small model in launch/demo_model, which has read the same text once.
# INPUT=path: your own text (a file or a folder of .txt), and a model from nothing.
# OUTPUT=folder: data/ and runs/ go there. SETTINGS="key=value ...": more settings for training.
# Run again, it resumes; what is finished is not done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source launch/typed.bash

START=launch/demo_model
if [ -n "${INPUT:-}" ]; then
  NAME="demo-$(basename "$INPUT" | tr -c 'A-Za-z0-9\n' '-')" START=
else
  INPUT=$(speeches)
  NAME=demo
fi
OUTPUT=${OUTPUT:+${OUTPUT%/}/}
DATA=${OUTPUT}data/$NAME GPST=${OUTPUT}runs/$NAME GPT2=${OUTPUT}runs/$NAME-gpt2
BLOCKS=(); if [ -f "$INPUT" ]; then BLOCKS=(--split-blank-lines); fi # one file: its paragraphs are the documents

# All GPUs (a power of two of them, so that the batch divides), else two ranks on the CPU.
GPUS=$(python -c 'import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); import torch; n = torch.cuda.device_count(); print(min(1 << n.bit_length() - 1, 4) if n else 0)')
if [ "$GPUS" -gt 0 ]; then
  LAUNCH=(deepspeed -q --num_gpus "$GPUS" launch/pretrain.sh) EXTRA=("train.micro_batch_contexts_per_rank=$((4 / GPUS))")
else
  LAUNCH=(DS_ACCELERATOR=cpu LOCAL_SIZE="${LOCAL_SIZE:-2}" deepspeed -q launch/pretrain.sh) EXTRA=()
fi
read -ra SETTINGS <<< "${SETTINGS:-}"
ARGS=("data.path=$DATA" "${EXTRA[@]}" "${SETTINGS[@]}")

if [ -n "$START" ]; then
  TOKENIZER=$START/gpst
  GOES_ON=(train.num_steps=100 optim.learning_rate=3.0e-4)
  FROM=" from launch/demo_model, which has read this text once"
  FROM_GPST=("${GOES_ON[@]}" optim.parser_learning_rate=3.0e-4 "checkpoint.init_from=$START/gpst")
  FROM_GPT2=("${GOES_ON[@]}" "checkpoint.init_from=$START/gpt2")
else
  TOKENIZER=$DATA-tokenizer FROM="" FROM_GPST=() FROM_GPT2=()
  run python -m data_prep tokenizer --source text --input "$INPUT" "${BLOCKS[@]}" --kind wordpiece --vocab-size 4096 --output "$TOKENIZER"
fi
run python -m data_prep build --source text --input "$INPUT" "${BLOCKS[@]}" --tokenizer "$TOKENIZER" \
  --output "$DATA" --validation-fraction 0.05 --workers 2
run python -m data_prep verify "$DATA"

train() { # RUN CONFIG WHAT SETTING...: trained and exported, unless that is done
  local run=$1 settings=(--config "$2" "${@:4}" "${ARGS[@]}" "run_dir=$1")
  if exported_with "$run" "${settings[@]}"; then
    echo; echo "$run: trained with these settings and exported already"
    return
  fi
  echo; echo "Pre-train $3"
  if [ "$run" = "$GPST" ]; then run "${LAUNCH[@]}" "${settings[@]}" train.stop_at_step=half; fi
  run "${LAUNCH[@]}" "${settings[@]}"
  export_run "$run" "${settings[@]}"
}

train "$GPST" configs/run/demo.yaml "GPST$FROM: stop half-way, as a time limit would, then go on to the end." "${FROM_GPST[@]}"
train "$GPT2" configs/run/demo_gpt2.yaml "a GPT-2 of the same size on the same tokens$FROM, for comparison." "${FROM_GPT2[@]}"

run bash launch/evaluate.sh perplexity --model "$GPST/exported" --gpt2 "$GPT2/exported" --data "$DATA" \
  --beam 8 --context-tokens 256 --max-contexts 6

if [ -n "$START" ]; then # trees of the same kind of English, bracketed by hand
  run bash launch/evaluate.sh grammar_induction --model "$GPST/exported" --parser inside --trees launch/demo_trees.txt \
    --output "$GPST/trees" --quiet
fi

printf '%s\n' "The people of this country have given us their trust." \
  "We must build a new and better world for our children." \
  "I ask the Congress to act on this bill before the end of the year." > "$GPST/sentences.txt"
run bash launch/parse.sh --model "$GPST/exported" --method inside "$GPST/sentences.txt"
run bash launch/parse.sh --model "$GPST/exported" --method left-to-right --beam 5 --format bracket "$GPST/sentences.txt"
run bash launch/generate.sh --model "$GPST/exported" --prompt "My fellow Americans," --trees

cat <<END

Done. Where things are:
  exported models      $GPST/exported  $GPT2/exported
  checkpoints          $GPST/checkpoints/
  metrics              $GPST/metrics.jsonl
  TensorBoard          .venv/bin/tensorboard --logdir ${OUTPUT}runs
END
