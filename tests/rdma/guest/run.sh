#!/usr/bin/env bash
# run.sh FOLDER COMMAND...: boots the guest of FOLDER (see make.sh) in QEMU, without any help by the processor, and runs
# the command there as root, in this folder, with this machine's files; whatever it writes there is gone afterwards. The
# command's output and exit status are ours; 124: it took longer than GUEST_TIMEOUT seconds; 125: the guest did not come
# up or died, twice: what its kernel died of was emulation, as far as we saw. The environment goes with it.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
folder="$(cd "$1" && pwd)"
shift
exchange="$(mktemp -d)"
guest=
trap '[ -z "$guest" ] || kill "$guest" 2>/dev/null; rm -rf "$exchange"' EXIT
trap 'exit 143' HUP INT TERM
cp "$here/inside.sh" "$exchange/inside"
{
  export -p
  printf 'cd %q\n' "$PWD"
  printf '%q ' "$@"
} >"$exchange/command"

# share TAG PATH [OPTIONS]: a folder of ours that the guest can mount.
shares=()
share() { shares+=(-virtfs "local,path=$2,mount_tag=$1,security_model=none,multidevs=remap${3:-}"); }
share host / ,readonly=on
share exchange "$exchange"

# tsc=reliable: under load the kernel distrusts its emulated clock, and patching its own code for that ends in an oops.
for attempt in 1 2; do
  : >"$exchange/output"
  timeout -k 5 "${GUEST_TIMEOUT:-300}" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
    -machine pc -accel tcg,thread=multi -cpu max -smp 2 -m "${GUEST_MEMORY:-4G}" -device virtio-rng-pci "${shares[@]}" \
    -kernel "$folder/kernel" -initrd "$folder/start" -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable" \
    -serial "file:$exchange/console" </dev/null >"$exchange/qemu" 2>&1 &
  guest=$!
  tail -q -n +1 -f --pid="$guest" -s 0.2 "$exchange/output" &
  reader=$!
  wait "$guest"
  ended=$?
  guest=
  wait "$reader"
  if [ -s "$exchange/status" ]; then exit "$(cat "$exchange/status")"; fi
  if [ "$ended" = 124 ] || [ "$ended" = 137 ]; then
    echo "the guest was stopped after ${GUEST_TIMEOUT:-300} s (GUEST_TIMEOUT)" >&2
    exit 124
  fi
  echo "the guest ended without a result (QEMU exited with $ended, attempt $attempt of 2); its console:" >&2
  tail -n 40 "$exchange/console" "$exchange/qemu" >&2
done
exit 125
