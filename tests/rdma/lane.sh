#!/usr/bin/env bash
# lane.sh NATIVE_TESTS PYVERBS [--short | --flow | --measure]: what `make test-rdma` runs in the guest, on soft-RoCE
# (rxe) and on soft-iWARP (siw). PYVERBS is the folder that Python's verbs are in.
#   --short    a part of it, in less than two minutes
#   --flow     `verbs_guest flow` 50 times on both, alone and beside two busy processes, and nothing else
#   --measure  no tests: our bandwidth and latency beside those of perftest
# The guest's processors are emulated, a tenth as fast as the machine's: the deadlines here are for that.
set -euo pipefail
native="$1" pyverbs="$2" mode="${3:-}"
roce="rxe0@1,rxe1@1" spare="rxe2@1,rxe3@1"
iwarp="siw0@10.78.0.1,siw1@10.78.0.2"

say() { printf '\n== [%3d s] %s\n' "$SECONDS" "$*"; }
on() { JAXRING_TEST_VERBS="$1" timeout 400 "${@:2}"; }
# moves SEED TIMES: links that go on over other ports.
moves() { JAXRING_TEST_VERBS_SPARE="$spare" on "$roce" "$native/verbs_moves" "$@"; }
# The peer is no part of the package and has a Python of its own: the one that pyverbs was built for.
peer() { PYTHONPATH="$pyverbs:$PWD" timeout 200 /usr/bin/python3 tests/rdma/verbs_peer.py "$native/verbs_echo"; }
# Without conftest.py and plugins, which import JAX once more.
jobs() {
  PYTHONPATH="$PWD:${PYTHONPATH:-}" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -m pytest -q -p pytest_timeout \
    -p no:cacheprovider --noconftest --durations=0 --timeout=900 "$@" tests/rdma/rdma_jobs.py
}

rdma link
if [ "$mode" = --measure ]; then exec python -m tests.rdma.bandwidth; fi
if [ "$mode" = --flow ]; then exec tests/rdma/flow.sh "$native" 50 "$roce" "$iwarp"; fi

say "perftest"
python tests/rdma/perftest.py
say "an independent peer"
peer
say "what a completion says of a write's source"
tests/rdma/write_source.sh "$native"
if [ "$mode" = --short ]; then
  for devices in "$roce" "$iwarp"; do
    say "native, $devices"
    on "$devices" "$native/verbs_guest"
    say "messages of the GPU engine, $devices"
    on "$devices" "$native/cuda_host_messages_test"
  done
  say "a fifth of the matrices of failures and of lacking memory, $roce"
  on "$roce" "$native/failure_matrix_test" 5 6
  on "$roce" "$native/memory_matrix_test" 5 6
  say "over other ports"
  moves "$RANDOM" 3
  say "JAX jobs"
  jobs -k 'rxe and bits_of_tcp'
  say "all passed"
  exit
fi

for devices in "$roce" "$iwarp"; do
  say "native, $devices"
  on "$devices" "$native/verbs_guest"
  names=(engine_order_test cuda_host_messages_test cuda_host_test)
  # These have several engines in one process: a second one makes no queue pair on a device of soft-iWARP's (Invalid
  # argument). No job does that; jobs of four processes are below, on both.
  if [ "$devices" = "$roce" ]; then
    names+=(engine_failure_test engine_leaving_test engine_refusal_test engine_p2p_test engine_test)
  fi
  for name in "${names[@]}"; do
    say "$name, $devices"
    on "$devices" "$native/$name"
  done
done
for devices in "$roce" "$iwarp"; do
  say "failure_matrix_test, $devices"
  on "$devices" "$native/failure_matrix_test" 1 8
  say "memory_matrix_test, $devices"
  on "$devices" "$native/memory_matrix_test"
  say "faults_test, $devices"
  on "$devices" "$native/faults_test" 0 200
done
say "messages that the end of their sender overtakes"
for link in jxs0 jxs1; do tc qdisc add dev "$link" root netem delay 150ms; done
on "$iwarp" "$native/memory_matrix_test" 1 8 "full disk, finalising"
for link in jxs0 jxs1; do tc qdisc delete dev "$link" root; done
say "native, three queue pairs"
JAXRING_TEST_VERBS_QPS=3 on "$roce" "$native/verbs_guest" flow goodbye loss
say "over other ports"
for seed in 1 2 3 4 5 "$RANDOM"; do moves "$seed" 12; done
say "over other ports, three queue pairs"
JAXRING_TEST_VERBS_QPS=3 moves 6 12
say "JAX jobs"
jobs
say "all passed"
