#!/usr/bin/env bash
# images.sh cpu|cuda...: builds the images of examples/clusters from this checkout, as jaxring:cpu and jaxring:cuda, and
# runs a job of two processes in each, on CPUs: that of the image for GPUs needs none to install, import and start.
#
#   BUILDER      docker, podman or buildah, with options (default: the first of them that works here)
#   IMAGE_ARGS   options of its build command, such as --build-arg PYTHON=mirror.example/python:3.12-slim
#
# Where no container can be started, BUILDAH_ISOLATION=chroot BUILDER="buildah --storage-driver vfs" builds them as root.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "images.sh: $*" >&2; exit 1; }

works() { command -v "$1" >/dev/null && "$@" info >/dev/null 2>&1; }
if [ -n "${BUILDER:-}" ]; then
  read -ra builder <<<"$BUILDER"
  works "${builder[@]}" || fail "$BUILDER does not work here: '$BUILDER info' says why"
else
  for name in docker podman buildah; do
    if works "$name"; then break; fi
    name=""
  done
  [ -n "$name" ] || fail "neither docker nor podman nor buildah works here: 'docker info' says why (Debian: apt install buildah)"
  builder=("$name")
fi

container=""
remove() {
  if [ -n "$container" ]; then "${builder[@]}" rm "$container" >/dev/null; fi
  container=""
}
trap remove EXIT  # also after Ctrl-C

# in_image IMAGE COMMAND...: without a GPU, which the image for GPUs must bear.
in_image() {
  local image=$1 code=0
  shift
  # It may stand behind sudo.
  if [[ " ${builder[*]##*/} " != *" buildah "* ]]; then
    "${builder[@]}" run --rm --env JAX_PLATFORMS=cpu --shm-size 1g "$image" "$@"
    return
  fi
  container=$("${builder[@]}" from --pull-never "$image")
  # Its own name would have no address, which JAX needs of it.
  "${builder[@]}" run --hostname localhost --env JAX_PLATFORMS=cpu "$container" -- "$@" || code=$?
  remove
  return "$code"
}

for kind in "$@"; do
  case $kind in
    cpu) file=examples/clusters/Dockerfile ;;
    cuda) file=examples/clusters/Dockerfile.cuda ;;
    *) fail "there is no image '$kind', but cpu and cuda" ;;
  esac
  # shellcheck disable=SC2086 # options, split at spaces
  "${builder[@]}" build ${IMAGE_ARGS:-} -f "$file" -t "jaxring:$kind" .
  in_image "jaxring:$kind" python -m jaxring --version
  if [ "$kind" = cuda ]; then in_image jaxring:cuda python -c "import jaxring._native_cuda"; fi
  in_image "jaxring:$kind" python -m jaxring run -n 2 examples/clusters/job.py
done
