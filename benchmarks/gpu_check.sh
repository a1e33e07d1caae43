#!/usr/bin/env bash
# All that needs a GPU, in under five minutes on a bare machine: torch, triton, transformers, numba, jaxtyping, pytest
# (no deepspeed):
#   bash benchmarks/gpu_check.sh [FOLDER for the results, default benchmarks/results/gpu]
#   bash benchmarks/gpu_check.sh --rehearse [FOLDER]    the same commands without a GPU, on the CPU and small
# Goes on after a failure and says at the end what failed.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=.:benchmarks${PYTHONPATH:+:$PYTHONPATH}
PYTHON=${PYTHON:-python3}
DEVICE=cuda CONFIG=configs/model/gpst_small.yaml CONTEXTS=(4 8 32) KERNELS=(--dtype bfloat16) SIZES=(--vocab-size 30522) TESTS=()
if [ "${1:-}" = --rehearse ]; then
  shift
  export TRITON_INTERPRET=1
  DEVICE=cpu CONFIG=configs/model/gpst_tiny.yaml CONTEXTS=(1) KERNELS=(--repeat 1 --only heads) SIZES=(--vocab-size 64) TESTS=(--collect-only) # make test runs them
fi
OUT=${1:-benchmarks/results/gpu}; mkdir -p "$OUT"
failed=()
check() { # check NAME SECONDS COMMAND...
  local name=$1 limit=$2; shift 2
  [ $DEVICE = cuda ] || limit=3600 # a slow machine is no fault
  echo "== $name"
  timeout "$limit" "$@" 2>&1 | tee "$OUT/$name.txt" | tail -n 40
  [ "${PIPESTATUS[0]}" = 0 ] || failed+=("$name")
}
for package in torch triton transformers numba jaxtyping pytest yaml; do
  "$PYTHON" -c "import $package" 2>/dev/null || { echo "gpu_check: the package $package is missing" >&2; exit 2; }
done
if [ $DEVICE = cuda ]; then
  "$PYTHON" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' | tee "$OUT/device.txt" ||
    { echo "gpu_check: no CUDA device" >&2; exit 2; }
fi
check self-check 90 "$PYTHON" -c "import torch; from gpst.kernels.gpu.check import disagreement
fault = disagreement(torch.device('$DEVICE')); print(fault or 'Triton agrees with PyTorch'); raise SystemExit(bool(fault))"
check tests 150 "$PYTHON" -m pytest -q -p no:cacheprovider --noconftest -o addopts=--import-mode=importlib -W default \
  -m "not slow" "${TESTS[@]}" tests/gpst/kernels/test_pair_fused.py tests/gpst/kernels/test_kernels.py \
  tests/gpst/kernels/test_gpu.py tests/gpst/kernels/test_fused_levels.py tests/gpst/kernels/test_trees.py
check kernels 60 "$PYTHON" benchmarks/bench_kernels.py --device $DEVICE "${KERNELS[@]}"
for contexts in "${CONTEXTS[@]}"; do # forecast and measurement side by side, bf16 weights as the engine trains
  check "step-$contexts" 90 "$PYTHON" benchmarks/gpu_forecast.py --config $CONFIG --contexts "$contexts" "${SIZES[@]}" --measure $DEVICE
done
[ ${#failed[@]} = 0 ] && echo "gpu_check: all passed, results in $OUT" || { echo "gpu_check: failed: ${failed[*]}"; exit 1; }
