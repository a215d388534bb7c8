"""ASTRA-sim's network files for its analytical backend (https://github.com/astra-sim/astra-network-analytical):

    topology: [ Switch, Ring ]     # the dimensions, the innermost first
    npus_count: [ 8, 2 ]
    bandwidth: [ 400.0, 50.0 ]     # of each link, GB/s, by which it means 2^30 bytes a second
    latency: [ 936.25, 1000.0 ]    # of each link, ns

NPUs whose numbers differ in one dimension only are joined by that dimension's rings, switches or pairs of links.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.topology.formats.marked import File

_KINDS = ("Ring", "FullyConnected", "Switch")
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_MOST_NPUS, _MOST_LINKS = 1 << 16, 1 << 21
_GIB = (1 << 30) / 1e9


def is_one(root: object) -> bool:
    """Whether a file's content is meant for this."""
    return isinstance(root, dict) and bool({"npus_count", "topology"} & root.keys())


def read(file: File) -> tuple[Fabric, int]:
    """The fabric, and how many NPUs its first dimension has. NPU i is rank i. Raises ValueError with the line."""
    given = [_row(file, key) for key in _KEYS]
    kinds, counts, bandwidths, latencies = given
    for key, row in zip(_KEYS, given, strict=True):
        if len(row) != len(kinds) or not row:
            raise file.wrong(row.line, f"{key} has {len(row)} entries, and topology {len(kinds)}; there is one each")
    for i, kind in enumerate(kinds):
        if kind not in _KINDS:
            raise file.wrong(kinds.lines[i], f"there is no topology {kind!r}; there are {', '.join(_KINDS)}")
        if type(counts[i]) is not int or counts[i] < 2:
            raise file.wrong(counts.lines[i], f"npus_count is {counts[i]!r}, not a whole number from 2")
        if not _is_number(bandwidths[i]) or bandwidths[i] <= 0:
            raise file.wrong(bandwidths.lines[i], f"bandwidth is {bandwidths[i]!r}, not a number of GB/s above 0")
        if not _is_number(latencies[i]) or latencies[i] < 0:
            raise file.wrong(latencies.lines[i], f"latency is {latencies[i]!r}, not a number of ns from 0")
    npus = math.prod(counts)
    links = sum(npus * (n - 1 if kind == "FullyConnected" else 2) for kind, n in zip(kinds, counts, strict=True))
    if npus > _MOST_NPUS or links > _MOST_LINKS:
        most = f"at most {_MOST_NPUS} and {_MOST_LINKS}"
        raise file.wrong(counts.line, f"it describes {npus} NPUs and {links} links; {most}")
    return _fabric(list(zip(kinds, counts, bandwidths, latencies, strict=True)), npus), counts[0]


def _row(file: File, key: str) -> Any:
    return file.get(file.root, key, list, "a list with an entry for each dimension, such as [ 8 ]")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _fabric(dimensions: list[tuple[str, int, float, float]], npus: int) -> Fabric:
    vertices = [Vertex(f"npu{i}", VertexKind.RANK, i // dimensions[0][1]) for i in range(npus)]
    links: list[Link] = []
    stride = 1
    for number, (kind, count, bandwidth, latency) in enumerate(dimensions):
        for first in (i for i in range(npus) if i // stride % count == 0):
            group = [first + stride * i for i in range(count)]
            if kind == "Switch":
                vertices.append(Vertex(f"switch{number}.{first}", VertexKind.SWITCH, -1))
            for a, b in _pairs(kind, group, len(vertices) - 1):
                links += (Link(*ends, bandwidth * _GIB, latency / 1000, f"dim{number}") for ends in ((a, b), (b, a)))
        stride *= count
    return Fabric(tuple(vertices), tuple(links))


def _pairs(kind: str, group: list[int], switch: int) -> Iterator[tuple[int, int]]:
    if kind == "Switch":
        yield from ((npu, switch) for npu in group)
    elif kind == "FullyConnected":
        yield from itertools.combinations(group, 2)
    else:
        yield from itertools.pairwise(group)
        if len(group) > 2:
            yield group[-1], group[0]
