#!/usr/bin/env bash
# make.sh FOLDER: makes FOLDER/linux, a user-mode Linux with soft-RoCE and soft-iWARP, out of the distribution's kernel
# source. Takes 5 to 10 minutes on 2 cores, once: it is kept until kernel.config changes. Installs what it needs with
# apt: the compiler's helpers, libibverbs with its headers and drivers, busybox.
#   KERNEL_SOURCE  the package with the source (default: the newest linux-source-6.x there is)
#   JOBS           of the kernel's make (default: one per core)
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
key="$(sha256sum "$here/kernel.config" "$here/make.sh" | sha256sum)"

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 install -y \
    --no-install-recommends "$@" >"$folder/apt.log" 2>&1 || { tail -20 "$folder/apt.log" >&2; return 1; }
}
missing() { for name; do dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q "ok installed" || echo "$name"; done; }

packages="$(missing busybox-static iproute2 ibverbs-providers libibverbs-dev librdmacm-dev)"
if [ ! -x "$folder/linux" ] || [ "$(cat "$folder/key" 2>/dev/null)" != "$key" ]; then
  packages+=" $(missing gcc make flex bison bc xz-utils)"
fi
if [ -n "${packages// /}" ]; then
  as_root apt-get -q update >"$folder/apt.log" 2>&1
  # shellcheck disable=SC2086
  install $packages
fi
[ -x "$folder/linux" ] && [ "$(cat "$folder/key" 2>/dev/null)" = "$key" ] && exit 0

source="${KERNEL_SOURCE:-$(apt-cache --names-only search '^linux-source-6\.[0-9]+$' | awk '{print $1}' | sort -V | tail -1)}"
[ -n "$source" ] || { echo "no package linux-source-6.x: name one with KERNEL_SOURCE" >&2; exit 1; }
echo "building a user-mode kernel from $source: some minutes, once"
rm -rf "$folder/work"
mkdir "$folder/work"
cd "$folder/work"
apt-get -q download "$source" >"$folder/apt.log" 2>&1 || { tail -5 "$folder/apt.log" >&2; exit 1; }
dpkg-deb --fsys-tarfile "$source"_*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | tar -xJ --strip-components 1
# One CPU: where two processes poll, they take turns at the timer's tick.
sed -i 's/^\tdefault 100$/\tdefault 1000/' arch/um/Kconfig
{
  make ARCH=um tinyconfig
  scripts/kconfig/merge_config.sh -m .config "$here/kernel.config"
  make ARCH=um olddefconfig
} >"$folder/kernel.log" 2>&1
for option in RDMA_RXE RDMA_SIW VETH OVERLAY_FS HOSTFS; do
  grep -q "^CONFIG_$option=y" .config || { echo "$source cannot be built with CONFIG_$option" >&2; exit 1; }
done
make ARCH=um -j"${JOBS:-$(nproc)}" linux >>"$folder/kernel.log" 2>&1 || { tail -20 "$folder/kernel.log" >&2; exit 1; }
strip -o "$folder/linux" linux
cd "$folder"
rm -rf work
echo "$key" >key
