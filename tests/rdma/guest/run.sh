#!/usr/bin/env bash
# run.sh FOLDER COMMAND...: runs the command as root in the guest of FOLDER (see make.sh), in this folder, with this
# machine's files; whatever it writes there is gone afterwards. The command's output and exit status are ours; 124: it
# took longer than GUEST_TIMEOUT seconds; 125: the guest did not come up or died. The environment goes with it.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
folder="$(cd "$1" && pwd)"
shift
exchange="$(mktemp -d)"
trap 'rm -rf "$exchange"' EXIT
cp "$here/inside.sh" "$exchange/inside"
{
  export -p
  printf 'cd %q\n' "$PWD"
  printf '%q ' "$@"
} >"$exchange/command"
: >"$exchange/output"

timeout -k 5 "${GUEST_TIMEOUT:-300}" "$folder/linux" mem="${GUEST_MEMORY:-4G}" rootfstype=hostfs root=/dev/root \
  rootflags=/ ro init="$here/init.sh" exchange="$exchange" con=null ssl=null con0=fd:0,fd:1 quiet panic=1 \
  </dev/null >"$exchange/console" 2>&1 &
guest=$!
tail -q -n +1 -f --pid="$guest" -s 0.2 "$exchange/output"
wait "$guest"
ended=$?
if [ -s "$exchange/status" ]; then exit "$(cat "$exchange/status")"; fi
if [ "$ended" = 124 ] || [ "$ended" = 137 ]; then
  echo "the guest was stopped after ${GUEST_TIMEOUT:-300} s (GUEST_TIMEOUT)" >&2
  exit 124
fi
echo "the guest ended without a result; its console:" >&2
tail -30 "$exchange/console" >&2
exit 125
