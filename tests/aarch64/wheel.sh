#!/usr/bin/env bash
# wheel.sh FOLDER: cross-compiles the wheel for 64-bit Arm and installs it beside what root.sh has made in FOLDER.
set -euo pipefail
folder="$(cd "$1" && pwd)"
cd "$(dirname "$0")/../.."
version="$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"

define() { printf -- '--config-settings=cmake.define.%s ' "$1"; }
rm -rf "$folder"/{wheel,jaxring}
# Names of the wheel and of the module come from the Python that builds; these are of the one that will import them.
# shellcheck disable=SC2046
_PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=".cpython-${version/./}-aarch64-linux-gnu.so" \
  python -m pip wheel -q --no-deps --no-build-isolation -w "$folder/wheel" . \
  --config-settings=build-dir="$folder/module" \
  $(define "CMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64.cmake") $(define "JAXRING_AARCH64_ROOT=$folder/root") \
  $(define JAXRING_CUDA=OFF) $(define JAXRING_WERROR=ON) $(define "JAXRING_UNITY=${UNITY:-ON}") \
  $(define "Python_INCLUDE_DIR=$folder/headers/python$version") \
  $(define "Python_NumPy_INCLUDE_DIR=$folder/site/numpy/_core/include") \
  $(define "JAXRING_STUB_PYTHON=$folder/python")
python -m pip install -q --no-deps --target "$folder/jaxring" --platform linux_aarch64 --python-version "$version" \
  --only-binary :all: "$folder"/wheel/*.whl
