#!/usr/bin/env bash
# root.sh FOLDER: makes what runs programs of 64-bit Arm on this machine, without installing anything of it:
#   FOLDER/root     Debian for arm64, unpacked: Python, the C++ library, OpenSSL
#   FOLDER/site     jax, numpy and what the tests need, as wheels for arm64
#   FOLDER/headers  Python's headers for arm64
#   FOLDER/python   the Python of the root under qemu-user; sys.executable names it, so that it can start others
# Takes half a minute and 40 MB of packages and 200 MB of wheels, once: all is kept until this script changes.
#   JAX   the version of jax and jaxlib (default: that of the Python that runs this)
set -euo pipefail
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
python="python$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
jax="${JAX:-$(python -c 'import jax; print(jax.__version__)')}"
log="$folder/root.log"
key="$(cat "$0" <(echo "$python $jax $folder") | sha256sum)"
if [ "$(cat "$folder/key" 2>/dev/null)" = "$key" ]; then exit 0; fi
quietly() { "$@" >"$log" 2>&1 || { tail -20 "$log" >&2; echo "$1 failed: all of it is in $log" >&2; exit 1; }; }

echo "making a root of arm64 with $python and jax $jax: half a minute, once"
rm -rf "$folder"/{key,apt,root,site,headers}
mkdir -p "$folder"/apt/{state/lists,cache/archives}/partial "$folder"/{root,headers}
: >"$folder/apt/status"

# The sources of this machine's apt, for another architecture, with a state of their own.
apt() {
  quietly apt-get -qy -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$folder/apt/state" -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt/cache" \
    -o Debug::NoLocking=1 "$@"
}
apt update
apt install --download-only --no-install-recommends "$python" "lib$python-dev" libstdc++6 libssl3
for package in "$folder"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
rm -r "$folder/apt"
# pyconfig.h of Debian includes the one of the architecture, by a path that the compiler does not search.
cp -r "$folder/root/usr/include/$python" "$folder/headers/"
cp "$folder/root/usr/include/aarch64-linux-gnu/$python/pyconfig.h" "$folder/headers/$python/"

wheels=()
for glibc in 2_17 2_27 2_28 2014; do wheels+=(--platform "manylinux${glibc/#2_/_2_}_aarch64"); done
quietly python -m pip install -q --target "$folder/site" "${wheels[@]}" --python-version "${python#python}" \
  --only-binary :all: "jax==$jax" "jaxlib==$jax" 'rich>=13.7'

cat >"$folder/python" <<END
#!/bin/sh
exec qemu-aarch64 -L '$folder/root' -0 "\$0" -E PYTHONHOME='$folder/root/usr' \\
  -E PYTHONPATH="\${PYTHONPATH:+\$PYTHONPATH:}$folder/jaxring:$folder/site" '$folder/root/usr/bin/$python' "\$@"
END
chmod +x "$folder/python"
echo "$key" >"$folder/key"
