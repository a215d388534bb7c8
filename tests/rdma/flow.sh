#!/usr/bin/env bash
# flow.sh NATIVE_TESTS TIMES DEVICES...: `verbs_guest flow` so many times on each pair of devices, alone and beside two
# busy processes. Stops at the first fault, which tells what it found and what went before.
set -euo pipefail
native="$1" times="$2"
busy=()
trap '((${#busy[@]} == 0)) || kill "${busy[@]}"' EXIT

for beside in "alone" "beside two busy processes"; do
  if [ "$beside" != alone ]; then
    for _ in 1 2; do
      while :; do :; done &
      busy+=($!)
    done
  fi
  for devices in "${@:3}"; do
    began=$SECONDS
    for ((run = 1; run <= times; ++run)); do
      JAXRING_TEST_VERBS="$devices" timeout 200 "$native/verbs_guest" flow >/tmp/flow 2>&1 || {
        echo "run $run of $times, $devices, $beside: failed with $?"
        cat /tmp/flow
        exit 1
      }
      ((run % 10)) || echo "$devices, $beside: $run of $times without a fault, $((SECONDS - began)) s"
    done
  done
done
