#!/usr/bin/env bash
# clean.sh FOLDER PYTHON...: installs the wheel from FOLDER/dist in an empty environment of each PYTHON, without a
# compiler, and runs README's example there. The first environment is FOLDER/venv, the others are removed.
set -euo pipefail
folder=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
script=$(mktemp --suffix=.py)
trap 'rm -f "$script"' EXIT
awk '/^```/ { inside = $0 == "```python" && !seen; if (inside) seen = 1; next } inside' README.md >"$script"
first=venv
for base in "$@"; do
  venv=$folder/${first:-venv-other}
  case "$("$base" --version)" in
    "Python 3.11."*) wheel=$(ls "$folder"/dist/*-cp311-cp311-*.whl) ;;
    *) wheel=$(ls "$folder"/dist/*-cp312-abi3-*.whl) ;;
  esac
  rm -rf "$venv"
  "$base" -m venv "$venv"
  # Nothing else is on the path, and pip may compile nothing.
  (
    export PATH="$venv/bin"
    pip install -q --only-binary :all: "$wheel"
    cd /
    python -I -X dev -W error -c 'import jaxring; print("jaxring", jaxring.__version__, "imports")'
    jaxring --help >/dev/null
    said=$(JAX_PLATFORMS=cpu python "$script")
    if [ "${said%%$'\n'*}" != 28.0 ]; then
      echo "FAILED: README's example does not print 28.0 but $said" >&2
      exit 1
    fi
    echo "README's example runs on $(python --version)"
  )
  if [ -z "$first" ]; then rm -rf "$venv"; fi
  first=""
done
