#!/usr/bin/env bash
# wheels.sh FOLDER PYTHON...: makes what is published, in FOLDER: a source distribution, and manylinux wheels. That of
# Python 3.11 is for it alone; the first later PYTHON makes the one for all from 3.12 on (stable ABI). Each is built
# from the source distribution, without a network.
#
#   JAXRING_CUDA   OFF (default), ON: also the CUDA engine, for the GPUs that JAXRING_CUDA_ARCHITECTURES names
#   ROOT           what tests/aarch64/root.sh has made: the wheels are for 64-bit Arm, cross-compiled
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
shift
cd "$here"
work="$here/build/wheels"
mkdir -p "$work"
LARGEST=$((20 << 20))
NEWEST_GLIBC=34  # 2.34

fail() { echo "wheels.sh: $*" >&2; exit 1; }
# Commands without a network, where this user may make a namespace.
offline() { if unshare -rn true 2>/dev/null; then unshare -rn "$@"; else "$@"; fi; }
define() { printf -- '--config-settings=cmake.define.%s\n' "$1"; }

release="$work/release"
if [ ! -e "$release/twine" ]; then
  python -m pip install -q --upgrade --target "$release" -r <(python tools/requirements.py release)
fi
released() { PATH="$release/bin:$PATH" PYTHONPATH="$release" python -m "$@"; }

machine="$(uname -m)"
if [ -n "${ROOT:-}" ]; then ROOT="$(cd "$ROOT" && pwd)" machine=aarch64; fi

for base in "$@"; do
  version="$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  if [ "$version" != 3.11 ]; then
    if [ -n "${stable:-}" ]; then continue; fi
    stable=made
  fi
  venv="$work/venv-$version"
  if [ ! -e "$venv/.complete" ]; then
    "$base" -m venv "$venv"
    "$venv/bin/python" -m pip install -q -r <(python tools/requirements.py build)
    touch "$venv/.complete"
  fi
  if [ -z "${sdist:-}" ]; then
    rm -rf "$work/source" "$work/sdist"
    mkdir -p "$work/source" "$work/sdist"
    offline "$venv/bin/python" -c \
      'import sys; from scikit_build_core import build; print(build.build_sdist(sys.argv[1]))' "$work/sdist" >/dev/null
    sdist="$(ls "$work"/sdist/*.tar.gz)"
    tar -xf "$sdist" -C "$work/source" --strip-components=1
  fi
  # As far below its root as any build of the checkout, so that a compiler cache has its sources by the same paths.
  options=(--config-settings=build-dir="$work/source/build/$machine-$version")
  settings=("JAXRING_CUDA=${JAXRING_CUDA:-OFF}" JAXRING_UNITY=ON JAXRING_WERROR=ON
    "JAXRING_FFI_INCLUDE=$(python tools/ffi_headers.py "$work/headers")"
    "JAXRING_CUDA_ARCHITECTURES=${JAXRING_CUDA_ARCHITECTURES:-}")
  variables=()
  if [ -n "${ROOT:-}" ]; then
    include="$ROOT/headers/python$version"
    settings+=("CMAKE_TOOLCHAIN_FILE=$here/cmake/aarch64.cmake" "JAXRING_AARCH64_ROOT=$ROOT/root"
      "Python_NumPy_INCLUDE_DIR=$ROOT/site/numpy/_core/include")
    if [ ! -e "$include" ]; then
      # A Python that the root does not have. Its limited API has the same headers on both processors, and what these
      # read of pyconfig.h are the sizes of C's types, which are the same, too.
      include="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    fi
    settings+=("Python_INCLUDE_DIR=$include" "JAXRING_STUB=$work/_native.pyi")
    variables=(_PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=".cpython-${version/./}-aarch64-linux-gnu.so")
    python -m zipfile -e "$(ls "$folder"/*x86_64.whl | head -1)" "$work/native"
    cp "$work/native/jaxring/_native.pyi" "$work/_native.pyi"
  fi
  for setting in "${settings[@]}"; do options+=("$(define "$setting")"); done
  rm -rf "$work/built" "$work/repaired"
  offline env "${variables[@]}" "$venv/bin/python" -m pip wheel -q --no-deps --no-index --no-build-isolation \
    -w "$work/built" "$work/source" "${options[@]}"
  # For the oldest C library that will do: built on Debian 12, 2.34, which Ubuntu 22.04 and RHEL 9 have, too.
  released auditwheel repair --plat auto -w "$work/repaired" "$work"/built/*.whl
  for wheel in "$work"/repaired/*.whl; do
    glibc="$(grep -oE 'manylinux_2_[0-9]+' <<<"${wheel##*/}" | sort -V | tail -1 || true)"
    [ -n "$glibc" ] || fail "${wheel##*/} is for no manylinux platform: 'auditwheel -v show' of it says why"
    [ "${glibc##*_}" -le "$NEWEST_GLIBC" ] || fail "${wheel##*/} would need a C library newer than 2.$NEWEST_GLIBC. Find" \
      "the symbol by 'auditwheel -v show' of $(echo "$work"/built/*.whl); ffi/base/condition_variable.h is about one such symbol"
  done
  mv "$work"/repaired/*.whl "$folder"
done
cp "$sdist" "$folder"
released twine check --strict "$folder"/*
for file in "$folder"/*; do
  [ "$(stat -c %s "$file")" -le "$LARGEST" ] || fail "$file has more than $LARGEST bytes"
done
ls -l "$folder" | awk 'NR > 1 { printf "%8.2f MiB  %s\n", $5 / 1048576, $9 }'
