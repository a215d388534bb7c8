#!/usr/bin/env bash
# write_source.sh NATIVE_TESTS: what our transport may expect of a write's completion, asked of the kernel's devices
# without our code (ffi/tests/transport/rdma/write_source.cc), over cables that take their time.
#
# By the verbs' rules the source of a write is free when a later request of the same queue pair is complete. soft-RoCE
# keeps to that. soft-iWARP does not where an unsignaled write has a page or more: it has TCP send it from where it is
# (siw_qp_prepare_tx in siw_qp_tx.c: use_sendpage), and completions say that TCP has taken something, not that it has
# gone. Signaled writes it copies. Therefore each of our writes by iWARP is signaled (Endpoint::Write).
set -euo pipefail
native="$1" milliseconds=5 rounds=20
for interface in jxr0 jxs0; do tc qdisc add dev "$interface" root netem delay "${milliseconds}ms"; done
trap 'for interface in jxr0 jxs0; do tc qdisc delete dev "$interface" root; done' EXIT

ask() { timeout 60 "$native/write_source" "$@"; }
for bytes in 256 4096 65536; do
  ask 10.77.0.1 10.77.0.2 "$bytes" "$rounds" later
  ask 10.77.0.1 10.77.0.2 "$bytes" "$rounds" own
  ask 10.78.0.1 10.78.0.2 "$bytes" "$rounds" own
done
status=0
ask 10.78.0.1 10.78.0.2 65536 "$rounds" later || status=$?
case "$status" in
  0) echo "this kernel's soft-iWARP keeps to the rules" ;;
  1) echo "as we know soft-iWARP" ;;
  *) exit "$status" ;;
esac
