#!/usr/bin/env bash
# README's commands as its reader runs them: in the checkout's root, in an environment that has the wheel.
#
#   tests/package/in_checkout.sh FOLDER     FOLDER/venv has a wheel of FOLDER/dist without its extras
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/../.."
bin=$folder/venv/bin
out=$folder/out
mkdir -p "$out"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# The package alone: no tests, no studies.
version=$("$bin/python" -c 'import importlib.metadata; print(importlib.metadata.version("jaxring"))')
shopt -s failglob
for wheel in "$folder"/dist/*.whl; do
  listed=$("$bin/python" -m zipfile -l "$wheel" | awk 'NR > 1 { print $1 }')
  others=$(grep -vE '^jaxring(/|_plugin/|-[^/]*\.dist-info/)' <<<"$listed" || true)
  [ -z "$others" ] || fail "$wheel holds more than the package: $others"
done

# Without what draws plots: a sentence, and what needs none works.
code=0
"$bin/jaxring" bench all_reduce --plot "$out/out.png" >"$out/said" 2>&1 || code=$?
[ "$code" = 1 ] && [ "$(wc -l <"$out/said")" = 1 ] && grep -q "pip install 'jaxring\[bench\]'" "$out/said" ||
  fail "jaxring bench --plot without matplotlib (exit code $code): $(cat "$out/said")"
"$bin/jaxring" topo >"$out/said"
# It exits with 1 where this host lacks what every job needs.
"$bin/jaxring" doctor >"$out/said" || [ "$?" = 1 ] && grep -q "Settings\|JAXRING_" "$out/said" ||
  fail "jaxring doctor: $(cat "$out/said")"
"$bin/jaxring" explain all_reduce -n 2x2 >"$out/said"
"$bin/jaxring" bench all_reduce -n 1x2 -b 4 -e 64 -f 16 -w 1 --iters 4 --peers xla
"$bin/jaxring" run -n 2 --output rank0 examples/train_lm.py --steps 2 --width 32 --layers 1 --plot "$out/loss.png"

"$bin/python" -m pip install -q "jaxring[bench]==$version"
"$bin/jaxring" bench all_reduce all_gather -n 2x1 -n 1x4 -b 4 -e 64K -f 64 -w 1 --iters 4 --peers xla,gloo \
  --json "$out/out.json" --plot "$out/out.png"
"$bin/python" -m benchmarks.pytrees --devices 2 --iters 2
"$bin/jaxring" run -n 2 --output rank0 -m benchmarks.overlap --help >/dev/null
echo "README's commands work in the checkout"
