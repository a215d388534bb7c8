"""The measurements of docs/benchmarks.md, a file for each row of its plots and tables.

    python -m benchmarks.cpu --out DIR
    python -m benchmarks.page DIR docs/benchmarks.md

Rows are what the project promises of its CPU engine. Peers that are not installed are named and left out. Exits with 1
where a result of ours is wrong, or a row cannot be measured.
"""

from __future__ import annotations

import sys

from benchmarks.rows import Network, Row, main
from jaxring.bench.hosts import Hosts

SMALL = ("4", "64", "1K")
MIDDLE = ("4K", "16K", "64K", "256K", "1M")
LARGE = ("4M", "16M", "64M")
BETWEEN = ("gloo", "mpi", "mpi4jax", "torch")
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# The malloc settings that jaxring makes, here for all peers.
KEPT = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={65 << 20}:glibc.malloc.trim_threshold={260 << 20}"}
# Threads of one process, as XLA has for its devices, keep less memory than that in heaps of their own.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}

OTHERS = ("all_gather", "reduce_scatter", "all_to_all", "permute")
ROWS = tuple(
    [
        Row("1x8", "One process, 8 devices", 1, 8, ("all_reduce",), (*SMALL, *MIDDLE, *LARGE), ("xla",)),
        Row("1x2", "One process, 2 devices", 1, 2, ("all_reduce",), ("1K", "64K", "1M", "16M", "64M"), ("xla",)),
        Row("1x8-donated", "Operands donated", 1, 8, ("all_reduce",), ("1M", "16M", "64M"), ("xla",), inplace=True),
        Row("1x8-bf16", "bfloat16", 1, 8, ("all_reduce",), ("64K", "1M", "16M"), ("xla",), dtype="bfloat16"),
        Row("1x8-others", "Other collectives", 1, 8, OTHERS, ("1K", "64K", "1M", "16M", "64M"), ("xla",)),
        Row(
            "1x8-one-heap",
            "One heap for all threads",
            1,
            8,
            ("all_reduce",),
            ("1M", "16M", "64M"),
            ("xla",),
            environment=ONE_HEAP,
        ),
        Row("1x8-chain", "64 dependent ones in a program", 1, 8, ("all_reduce",), ("64", "1K"), ("xla",), chain=64),
    ]
    + [Row(f"{n}x1", f"{n} processes", n, 1, ("all_reduce",), (*SMALL, *MIDDLE, *LARGE), BETWEEN) for n in (2, 4)]
    + [
        Row(f"{n}x1-chain", f"{n} processes, 64 in a program", n, 1, ("all_reduce",), ("64", "1K"), BETWEEN, chain=64)
        for n in (2, 4)
    ]
    + [
        Row(
            f"{n}x1-{name}",
            f"{n} processes, {title}",
            n,
            1,
            ("all_reduce",),
            ("64K", "1M", "16M", "64M"),
            BETWEEN,
            environment=environment,
        )
        for name, title, environment in (
            ("huge-pages", "huge pages for every peer's malloc", HUGE_PAGES),
            ("kept", "every peer's malloc keeps what is freed", KEPT),
        )
        for n in (2, 4)
    ]
    + [
        Row(
            f"{n}x1-numpy",
            f"{n} processes, NumPy buffers",
            n,
            1,
            ("all_reduce",),
            (*SMALL, *MIDDLE, *LARGE),
            ("raw-mpi", "raw-mpich"),
        )
        for n in (2, 4)
    ]
    + [
        Row("1x16", "16 devices of one process", 1, 16, ("all_reduce",), ("1K", "64K", "1M"), ("xla",)),
        Row("1x64", "64 devices of one process", 1, 64, ("all_reduce",), ("1K", "64K", "1M"), ("xla",)),
        Row("16x1", "16 processes", 16, 1, ("all_reduce",), ("1K", "64K", "1M"), ("gloo", "mpi")),
    ]
    + [
        Row(
            f"{n}-hosts-{rate}",
            f"{n} hosts, {rate} links",
            n,
            1,
            ("all_reduce",),
            ("4", "1K", "16K", "64K", "1M", "16M", "64M"),
            ("gloo", "mpi", "torch"),
            network=Network(n, rate),
        )
        for n, rate in ((2, "1gbit"), (2, "10gbit"), (4, "10gbit"))
    ]
    + [
        Row(
            "2-hosts-two-links",
            "2 hosts, two links of 1gbit",
            2,
            1,
            ("all_reduce",),
            ("16M", "64M"),
            ("gloo",),
            environment={"JAXRING_SOCKET_IFNAME": ",".join(Hosts.device(network) for network in range(2))},
            network=Network(2, "1gbit", links=2),
        ),
        Row(
            "4-hosts-pxn",
            "4 hosts of 2 devices, 10gbit links: PXN, and direct",
            4,
            2,
            ("all_to_all",),
            # What one rank has for another is an eighth of it: 4 bytes to 64 KiB.
            ("32", "512", "4K", "8K", "16K", "32K", "64K", "128K", "512K"),
            ("jaxring:JAXRING_ALGO=direct",),
            environment={"JAXRING_ALGO": "pxn"},
            network=Network(4, "10gbit"),
        ),
    ]
)


if __name__ == "__main__":
    sys.exit(main("benchmarks.cpu", __doc__, ROWS))
