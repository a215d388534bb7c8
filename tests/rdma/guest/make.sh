#!/usr/bin/env bash
# make.sh FOLDER: makes what run.sh boots: FOLDER/kernel, the distribution's own, and FOLDER/start, its first file
# system, with the modules that the tests need. Soft-RoCE comes with the kernel; soft-iWARP does not, and is built from
# its source as a module. Takes less than a minute, once: both are kept until these scripts change.
# Everything is from apt: QEMU, perftest, the verbs libraries and the like are installed; the kernel, its headers and
# source, and Python's verbs (FOLDER/pyverbs), whose installation would bring half a system along, are only unpacked.
#   KERNEL   the kernel's package (default: linux-image-6.12-amd64)
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
log="$folder/make.log"
wanted="${KERNEL:-linux-image-6.12-amd64}"
key="$(cat "$here/make.sh" "$here/init.sh" <(echo "$wanted") | sha256sum)"

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
quietly() { "$@" >"$log" 2>&1 || { tail -20 "$log" >&2; echo "$1 failed: all of it is in $log" >&2; return 1; }; }
apt() { quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }
missing() { for name; do dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q "ok installed" || echo "$name"; done; }

# Python's verbs go with the distribution's Python.
mapfile -t packages < <(missing qemu-system-x86 busybox-static cpio kmod xz-utils make iproute2 python3 \
  ibverbs-providers libibverbs-dev librdmacm-dev perftest)
if ((${#packages[@]} == 0)) && [ "$(cat "$folder/key" 2>/dev/null)" = "$key" ]; then exit 0; fi

echo "making a guest with $wanted: less than a minute, once"
apt update
depends() { apt-cache depends "$1" | sed -n "s/.*Depends: \($2\)\$/\1/p" | head -1; }
image="$(depends "$wanted" 'linux-image-[^ ]*')"
[ -n "$image" ] || { echo "apt has no $wanted: name another kernel's package with KERNEL" >&2; exit 1; }
release="${image#linux-image-}"  # 6.12.117+deb12-amd64
version="${release%-*}"          # 6.12.117+deb12
compiler="$(depends "linux-headers-$release" 'gcc-[0-9]*')"
mapfile -t -O "${#packages[@]}" packages < <(missing "$compiler")
if ((${#packages[@]})); then apt install -y --no-install-recommends "${packages[@]}"; fi

work="$folder/work"
rm -rf "$work" "$folder/key" "$folder/pyverbs"
mkdir -p "$work/debs" "$work/siw" "$work/start/modules"
cd "$work/debs"
quietly apt-get -q download "$image" "linux-headers-$release" "linux-headers-$version-common" \
  "linux-kbuild-$version" "linux-source-$(cut -d. -f1,2 <<<"$release")" python3-pyverbs
for package in "$image" "linux-headers-$release" "linux-headers-$version-common" "linux-kbuild-$version"; do
  dpkg-deb -x "$package"_*.deb "$work"
done
dpkg-deb -x python3-pyverbs_*.deb pyverbs
mv pyverbs/usr/lib/python3/dist-packages "$folder/pyverbs"

dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
  tar -xJ -C "$work/siw" --strip-components 5 --wildcards '*/drivers/infiniband/sw/siw'
# The headers look for each other where they would be installed.
headers="$work/usr/src/linux-headers-$release"
sed -i "s|/usr/src|$work/usr/src|" "$headers/Makefile"
quietly make -C "$headers" -j "$(nproc)" M="$work/siw" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules
modules="$work/lib/modules/$release"
mkdir "$modules/updates"
strip --strip-debug -o "$modules/updates/siw.ko" "$work/siw/siw.ko"
quietly depmod -b "$work" "$release"

# Each module after those that it needs, by number; the checksums are those that rxe and siw ask for by name.
number=100
for name in 9pnet_virtio 9p overlay veth sch_netem crc32_generic crc32c_generic ib_uverbs rdma_ucm rdma_rxe siw; do
  while read -r file; do
    plain="$(basename "${file%.xz}")"
    compgen -G "$work/start/modules/*-$plain" >/dev/null && continue
    to="$work/start/modules/$number-$plain"
    if [[ $file = *.xz ]]; then xz -dc "$file" >"$to"; else cp "$file" "$to"; fi
    number=$((number + 1))
  done < <(modprobe -d "$work" -S "$release" --show-depends "$name" | awk '$1 == "insmod" {print $2}')
  compgen -G "$work/start/modules/*-$name.ko" >/dev/null || { echo "$image has no module $name" >&2; exit 1; }
done
cp "$here/init.sh" "$work/start/init"
cp /bin/busybox "$work/start/busybox"
(cd "$work/start" && find . | cpio -o -H newc --quiet | gzip -1) >"$folder/start"
cp "$work/boot/vmlinuz-$release" "$folder/kernel"
cd "$folder"
rm -rf work
echo "$key" >key
