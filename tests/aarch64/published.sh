#!/usr/bin/env bash
# published.sh FOLDER WHEELS: runs a job of JAX on 64-bit Arm with the repaired wheel from the folder WHEELS, made by
# `make wheels ROOT=FOLDER`, in place of the one that wheel.sh makes.
set -euo pipefail
folder="$(cd "$1" && pwd)"
version="$(python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"
wheels=("$2"/*-"$version-$version"-manylinux*_aarch64.whl)
[ "${#wheels[@]}" = 1 ] && [ -e "${wheels[0]}" ] ||
  { echo "$2 needs one manylinux wheel of $version for aarch64: make wheels ROOT=$1 PYTHONS=..." >&2; exit 1; }
rm -rf "$folder/jaxring"
python -m zipfile -e "${wheels[0]}" "$folder/jaxring"
"$(dirname "$0")/jobs.sh" "$folder"
