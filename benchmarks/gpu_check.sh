#!/usr/bin/env bash
# All that needs a GPU, in under five minutes on a bare machine with torch, triton, transformers (no deepspeed):
#   PYTHONPATH=. bash benchmarks/gpu_check.sh [FOLDER for the results, default benchmarks/results/gpu]
# Goes on after a failure and says at the end what failed.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=.:benchmarks${PYTHONPATH:+:$PYTHONPATH}
OUT=${1:-benchmarks/results/gpu}; mkdir -p "$OUT"
PYTHON=${PYTHON:-python3}
failed=()
check() { # check NAME SECONDS COMMAND...
  local name=$1 limit=$2; shift 2
  echo "== $name"
  timeout "$limit" "$@" 2>&1 | tee "$OUT/$name.txt" | tail -n 25
  [ "${PIPESTATUS[0]}" = 0 ] || failed+=("$name")
}
"$PYTHON" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' | tee "$OUT/device.txt" ||
  { echo "gpu_check: no CUDA device" >&2; exit 2; }
for package in numba jaxtyping pytest; do # the three that a bare machine may lack
  "$PYTHON" -c "import $package" 2>/dev/null || echo "gpu_check: the package $package is missing" >&2
done
check self-check 60 "$PYTHON" -c 'import torch; from gpst.kernels.gpu.check import disagreement
fault = disagreement(torch.device("cuda")); print(fault or "Triton agrees with PyTorch"); raise SystemExit(bool(fault))'
check tests 90 "$PYTHON" -m pytest -q -p no:cacheprovider --noconftest -o addopts=--import-mode=importlib -W default \
  tests/gpst/kernels/test_pair_fused.py tests/gpst/kernels/test_kernels.py tests/gpst/kernels/test_gpu.py
check kernels 40 "$PYTHON" benchmarks/bench_kernels.py --device cuda --dtype bfloat16
for kernels in triton torch; do
  GPST_KERNELS=$kernels check "step-small-$kernels" 60 "$PYTHON" benchmarks/bench_step.py --device cuda --bf16 \
    --config configs/model/gpst_small.yaml --tokens 16384 --repeat 5
done
[ ${#failed[@]} = 0 ] && echo "gpu_check: all passed, results in $OUT" || { echo "gpu_check: failed: ${failed[*]}"; exit 1; }
