#!/usr/bin/env bash
# jobs.sh FOLDER: runs a job of JAX of two processes on 64-bit Arm, with what root.sh and wheel.sh have made in FOLDER, and
# here. Both check their results against NumPy, and have the same bits.
set -euo pipefail
folder="$(cd "$1" && pwd)"
cd "$(dirname "$0")/../.."
tables=(reductions movements)

rm -rf "$folder"/{arm64,here}

# The tests without the sources of the package, which have no module for arm64.
mkdir -p "$folder/tree"
ln -sfn "$PWD/tests" "$folder/tree/tests"
job() { # job PYTHON FOLDER: the tables' results
  mkdir "$2"
  JAX_PLATFORMS=cpu JAXRING_TIMEOUT=300 PYTHONPATH="$folder/tree" \
    "$1" -m jaxring.cli run -n 2 --devices-per-process 1 tests/collectives/cases/coll_worker.py "$2" "${tables[@]}"
}
job "$folder/python" "$folder/arm64"
job python "$folder/here"
python -m tests.aarch64.compare "$folder/arm64" "$folder/here"
