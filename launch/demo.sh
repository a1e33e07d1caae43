#!/usr/bin/env bash
# The whole path on real text, from raw text to a model that parses and writes: `make demo`.
# INPUT=path: your own text (a file or a folder of .txt) instead of the State of the Union.
# OUTPUT=folder: data/ and runs/ go there. SETTINGS="key=value ...": more settings for training.
# Run again, it resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source launch/typed.bash

if [ -n "${INPUT:-}" ]; then
  NAME="demo-$(basename "$INPUT" | tr -c 'A-Za-z0-9\n' '-')"
else
  INPUT=$(speeches)
  NAME=demo
fi
OUTPUT=${OUTPUT:+${OUTPUT%/}/}
DATA=${OUTPUT}data/$NAME GPST=${OUTPUT}runs/$NAME GPT2=${OUTPUT}runs/$NAME-gpt2
BLOCKS=(); if [ -f "$INPUT" ]; then BLOCKS=(--split-blank-lines); fi # one file: its paragraphs are the documents

# All GPUs (a power of two of them, so that the batch divides), else two ranks on the CPU.
GPUS=$(python -c 'import torch; n = torch.cuda.device_count(); print(min(1 << n.bit_length() - 1, 4) if n else 0)')
if [ "$GPUS" -gt 0 ]; then
  LAUNCH=(deepspeed -q --num_gpus "$GPUS" launch/pretrain.sh) EXTRA=("train.micro_batch_contexts_per_rank=$((4 / GPUS))")
else
  LAUNCH=(DS_ACCELERATOR=cpu LOCAL_SIZE=2 deepspeed -q launch/pretrain.sh) EXTRA=()
fi
read -ra SETTINGS <<< "${SETTINGS:-}"
ARGS=("data.path=$DATA" "${EXTRA[@]}" "${SETTINGS[@]}")

run python -m data_prep tokenizer --source text --input "$INPUT" "${BLOCKS[@]}" --vocab-size 1024 --output "$DATA-tokenizer"
run python -m data_prep build --source text --input "$INPUT" "${BLOCKS[@]}" --tokenizer "$DATA-tokenizer" \
  --output "$DATA" --validation-fraction 0.05 --workers 2
run python -m data_prep verify "$DATA"

echo; echo "Pre-train GPST: stop half-way, as a time limit would, then go on to the end."
run "${LAUNCH[@]}" --config configs/run/demo.yaml "${ARGS[@]}" "run_dir=$GPST" train.stop_at_step=half
run "${LAUNCH[@]}" --config configs/run/demo.yaml "${ARGS[@]}" "run_dir=$GPST"

echo; echo "Pre-train a GPT-2 of the same size on the same tokens, for comparison."
run "${LAUNCH[@]}" --config configs/run/demo_gpt2.yaml "${ARGS[@]}" "run_dir=$GPT2"

run bash launch/convert.sh to-hf "$GPST" "$GPST/exported"
run bash launch/convert.sh to-hf "$GPT2" "$GPT2/exported"
# Small operations gain nothing from several threads.
run OMP_NUM_THREADS=1 bash launch/evaluate.sh perplexity --model "$GPST/exported" --gpt2 "$GPT2/exported" --data "$DATA" \
  --beam 8 --context-tokens 256 --max-contexts 6

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
