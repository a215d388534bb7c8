"""All-reduces of two JAX processes by RDMA and by TCP beside what perftest reaches on the same two soft-RoCE devices.

Run in the guest of test-rdma: `make test-rdma RDMA_ARGS=--measure`. It asserts nothing: times in an emulated machine
mean little, ratios of one run a bit more. Bandwidth is compared by direction: `ib_write_bw -b` counts both, and in an
all-reduce between two ranks as much goes either way as a rank's operand is long, which is also its bus bandwidth.
"""

from __future__ import annotations

import json
import pathlib
import tempfile

from tests.rdma import perftest
from tests.rdma.rdma_jobs import line, run

LARGE, SMALL = 16 << 20, 8
# Of each algorithm, how many messages follow each other between two ranks.
STEPS = {"oneshot": 1, "direct": 2, "ring": 2, "halving_doubling": 2, "tree": 2, "deterministic": 2}

# The guest's processors are a tenth as fast as those for which the default is made: a round trip takes as long here.
PATIENCE_US = "3000"


def all_reduces(folder: pathlib.Path, net: str) -> dict:
    """Seconds of one all-reduce by size, the slower process's, and how the small one went."""
    own = {"JAXRING_NET": "Socket", "JAXRING_IB_HCA": ""} if net == "tcp" else {}
    results = run(folder / net, "rxe", ["speed"], own=(own, own), JAXRING_PATIENCE=PATIENCE_US)
    found = [json.loads(line(result, "speed")) for result in results]
    assert all(json.loads(line(result, "transports")) == [net] for result in results)
    return found[0] | {name: max(each[name] for each in found) for name in ("large", "small")}


def main() -> None:
    rates = {size: perftest.megabytes_per_second(size, times) for size, times in ((65536, 1000), (1 << 20, 100))}
    delay = perftest.latency_us(SMALL, 2000)
    for size, rate in rates.items():
        print(f"ib_write_bw -b, {size >> 10} KiB: {rate:.1f} MB/s both ways together")
    print(f"ib_write_lat, {SMALL} bytes: {delay:.1f} us")
    best = max(rates.values()) / 2
    with tempfile.TemporaryDirectory() as folder:
        for net in ("verbs", "tcp"):
            found = all_reduces(pathlib.Path(folder), net)
            rate, small, algorithm = LARGE / found["large"] / 1e6, found["small"] * 1e6, found["algorithm"]
            steps = STEPS[algorithm]
            print(f"all_reduce over {net}, 16 MiB: {rate:.1f} MB/s bus bandwidth, {rate / best:.2f} of perftest's")
            print(
                f"all_reduce over {net}, {SMALL} bytes ({algorithm}, {steps} steps): {small:.1f} us, "
                f"{small / delay / steps:.2f} times perftest's x steps",
                flush=True,
            )


if __name__ == "__main__":
    main()
