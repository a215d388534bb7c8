#!/bin/bash
# Build, test and measure the CUDA engine on a machine with an NVIDIA GPU, in one command and under ten minutes.
#
# usage: tools/gpu_session.sh OUT [SECONDS]
#
# Raw output goes to the folder OUT, a file for each step; SUMMARY there says how each ended. A step that fails or takes
# too long does not stop the others. Needs python3 (or PYTHON=...) with jax and its CUDA plugin, numpy, ml_dtypes,
# nanobind and pytest; cmake 3.26, ninja, a C++20 compiler and nvcc. Nothing is downloaded.
set -u
OUT=$(mkdir -p "$1" && cd "$1" && pwd)
LIMIT=${2:-570}
PYTHON=${PYTHON:-python3}
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build/gpu}
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 JAXRING_TIMEOUT=${JAXRING_TIMEOUT:-30}
export XLA_PYTHON_CLIENT_PREALLOCATE=false
SECONDS=0

# step NAME SECONDS COMMAND...: at most so long, and no longer than what is left in all.
step() {
  local name=$1 limit=$2 begun=$SECONDS rc
  shift 2
  if [ $((LIMIT - SECONDS)) -lt 5 ]; then
    echo "$name: no time left" | tee -a "$OUT/SUMMARY"
    return 1
  fi
  [ $((LIMIT - SECONDS)) -lt "$limit" ] && limit=$((LIMIT - SECONDS))
  { echo "# $(date -u +%FT%TZ) $*"; timeout -k 5 "$limit" "$@"; } >"$OUT/$name.txt" 2>&1
  rc=$?
  echo "$name: exit $rc after $((SECONDS - begun)) s" | tee -a "$OUT/SUMMARY"
  [ $rc -ne 0 ] && tail -n 5 "$OUT/$name.txt"
  return $rc
}

build() {
  "$PYTHON" -m cmake --version >/dev/null 2>&1 && CMAKE=("$PYTHON" -m cmake) || CMAKE=(cmake)
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ')
  "${CMAKE[@]}" -S . -B "$BUILD" -G Ninja -DPython_EXECUTABLE="$(command -v "$PYTHON")" -DJAXRING_CUDA=ON \
    -DJAXRING_CUDA_ARCHITECTURES="${capability:-90}" ${JAXRING_FFI_INCLUDE:+-DJAXRING_FFI_INCLUDE="$JAXRING_FFI_INCLUDE"} &&
    "${CMAKE[@]}" --build "$BUILD" --target _native _native_cuda cuda_gpu_test &&
    cp "$BUILD"/_native*.so jaxring/
}

everything() {
  nvidia-smi
  nvidia-smi topo -m
  nvcc --version
  "$PYTHON" -c 'import sys, jax, jaxlib, numpy; print(sys.version, jax.__version__, jaxlib.__version__, numpy.__version__)'
  git rev-parse HEAD 2>/dev/null
  nproc
}

export -f build everything
export PYTHON BUILD
: >"$OUT/SUMMARY"
step machine 30 bash -c everything
step build 300 bash -c build || exit 1
step info 60 "$PYTHON" -c 'import jaxring; print(jaxring.build_info())'
step schedules 30 "$PYTHON" tools/dump_schedules.py "$OUT/schedules.bin"
export TEST_SCHEDULES=$OUT/schedules.bin
worker=tests/cuda_host/cudahost_worker.py
# By importance: kernels and memory without JAX, between processes, under JAX, and only then speed.
export PYTHONPATH=$PWD:$PWD/tests/cuda_host
step matrix 120 "$PYTHON" $worker matrix 0 1 1 0
step native 120 "$BUILD/cuda_gpu_test"
step bench 90 "$PYTHON" tools/gpu_bench.py --json "$OUT/bench.json"
step jax 200 "$PYTHON" -m pytest -q -x -p no:cacheprovider tests/gpu -m gpu -k "not one_process"
if command -v compute-sanitizer >/dev/null; then
  step memcheck 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$PYTHON" tools/gpu_bench.py \
    --ranks 2 --sizes 32K --lanes 2
  step racecheck 120 compute-sanitizer --tool racecheck --error-exitcode 9 "$PYTHON" tools/gpu_bench.py \
    --ranks 2 --sizes 32K --lanes 2
else
  echo "memcheck: there is no compute-sanitizer here" | tee -a "$OUT/SUMMARY"
fi
rm -f "$OUT/schedules.bin"
echo "$SECONDS s in all" | tee -a "$OUT/SUMMARY"
