#!/usr/bin/env bash
# readme.sh: README's commands as its reader pastes them, in this checkout: the lines of its shell blocks, in their
# order, then its first example, with the package that these have installed, and the benchmark.
#
# For a machine with nothing but a Python, a C++ compiler, make and git. It installs the package into that Python.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { echo "FAILED: $*" >&2; exit 1; }
run() { printf '\n\033[1m$ %s\033[0m\n' "$1"; bash -c "$1"; }

mapfile -t commands < <(awk '/^```/ { language = substr($0, 4); inside = !inside; next } inside && language == "sh" && NF' README.md)
[ "${#commands[@]}" -ge 3 ] || fail "README.md shows ${#commands[@]} commands: make demo, make test and pip install are missing"
for command in "${commands[@]}"; do run "$command"; done

script=$(mktemp --suffix=.py)
trap 'rm -f "$script"' EXIT
awk '/^```/ { inside = $0 == "```python" && !seen; if (inside) seen = 1; next } inside' README.md >"$script"
said=$(JAX_PLATFORMS=cpu python "$script")
[ "${said%%$'\n'*}" = 28.0 ] || fail "README's example does not print 28.0 but $said"
echo "README's example prints 28.0"

bench=$(grep -oE '^`jaxring bench [^`]*`' README.md | head -1 | tr -d '`') || true
[ -n "$bench" ] || fail "README.md has no line that begins with \`jaxring bench ...\`"
run "$bench"
