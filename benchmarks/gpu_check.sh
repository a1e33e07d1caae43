#!/usr/bin/env bash
# All that needs a GPU, in under five minutes on a bare machine: torch, triton, transformers, numba, pydantic, jaxtyping,
# pytest (no deepspeed). Goes on after a failure and says at the end what failed.
usage="usage: bash benchmarks/gpu_check.sh [--rehearse] [FOLDER]
  FOLDER      for the results, from the repository's root; by default benchmarks/results/gpu
  --rehearse  without a GPU: kernels are compiled for one and not run there, the tests of the kernels are collected
              (make test runs them), and the other commands run on the CPU and small; about a minute
PYTHON=.venv/bin/python before it names the interpreter; by default python3. Exit codes: 0 all passed, 1 something failed,
2 wrong usage, no GPU or a package is missing."
set -uo pipefail
refuse() { echo "gpu_check: $1" >&2; exit 2; }
rehearse= OUT=
for argument in "$@"; do
  case $argument in
    -h | --help) echo "$usage"; exit 0 ;;
    --rehearse) rehearse=1 ;;
    -* | "") refuse "unknown option '$argument' (see --help)" ;;
    *) [ -z "$OUT" ] || refuse "one folder, not both '$OUT' and '$argument' (see --help)"; OUT=$argument ;;
  esac
done
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH=.:benchmarks${PYTHONPATH:+:$PYTHONPATH}
PYTHON=${PYTHON:-python3} OUT=${OUT:-benchmarks/results/gpu}
DEVICE=cuda CONFIG=configs/model/gpst_small.yaml CONTEXTS=(4 8 32) KERNELS=(--dtype bfloat16) SIZES=(--vocab-size 30522) TESTS=()
if [ "$rehearse" ]; then
  export TRITON_INTERPRET=1
  DEVICE=cpu CONFIG=configs/model/gpst_tiny.yaml CONTEXTS=(1) KERNELS=(--repeat 1 --only heads) SIZES=(--vocab-size 64) TESTS=(--collect-only)
fi
command -v "$PYTHON" > /dev/null || refuse "no interpreter $PYTHON: name one, PYTHON=.venv/bin/python"
for package in torch triton transformers numba pydantic jaxtyping pytest yaml; do
  "$PYTHON" -c "from importlib.util import find_spec; raise SystemExit(find_spec('$package') is None)" ||
    refuse "$PYTHON has no package $package: activate the environment that has it (. .venv/bin/activate), or name it: PYTHON=.venv/bin/python"
done
if [ $DEVICE = cuda ]; then
  "$PYTHON" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null ||
    refuse "PyTorch sees no CUDA device; --rehearse needs none"
fi
mkdir -p "$OUT" || exit 2
[ $DEVICE = cpu ] || "$PYTHON" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' | tee "$OUT/device.txt"
failed=()
check() { # check NAME SECONDS COMMAND...
  local name=$1 limit=$2; shift 2
  [ $DEVICE = cuda ] || limit=3600 # a slow machine is no fault
  echo "== $name"
  timeout "$limit" "$@" 2>&1 | tee "$OUT/$name.txt" | tail -n 40
  [ "${PIPESTATUS[0]}" = 0 ] || failed+=("$name")
}
if [ "$rehearse" ]; then # Triton's own compilers, under a driver that launches nothing
  check compile 300 env -u TRITON_INTERPRET "$PYTHON" benchmarks/forecast/no_gpu.py --arch 80 --dims 64 --dtypes bfloat16 --pairs 1 33
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
