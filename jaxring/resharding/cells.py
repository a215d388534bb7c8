"""Which device sends what to which within one mesh, while a program is traced: pure.

Each dimension of an array is cut at the borders of the source's and of the target's blocks, into cells of equal size. A
device has some whole cells, and is to have others.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

# For each dimension, the numbers of the mesh's axes that shard it, the first one outermost.
Axes = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """Tables of int32 with a row for each device.

    ``held``, ``wanted``: how many cells a device has along each dimension, and is to have.
    ``sent_from``: (devices, most): which of the cells that it has are sent, those for one device together.
    ``sizes``: (devices, devices): how many cells go from a device to each.
    ``lies_at``: (devices, cells): of each cell that it is to have, the place among those that arrive.
    ``moves``: whether any cell goes to another device.
    """

    held: tuple[int, ...]
    wanted: tuple[int, ...]
    sent_from: np.ndarray
    sizes: np.ndarray
    lies_at: np.ndarray
    moves: bool


def _cells(cuts: tuple[int, ...], entries: Axes, sizes: tuple[int, ...], place: tuple[int, ...]) -> np.ndarray:
    """The numbers of the cells on the device at that place of the mesh, in the order of its block."""
    spans = []
    for cut, axes in zip(cuts, entries, strict=True):
        block = 0
        for axis in axes:
            block = block * sizes[axis] + place[axis]
        each = cut // math.prod(sizes[axis] for axis in axes)
        spans.append(np.arange(block * each, (block + 1) * each))
    numbers = np.zeros((), np.int64)
    for cut, span in zip(cuts, spans, strict=True):
        numbers = numbers[..., None] * cut + span
    return numbers.reshape(-1)


@functools.lru_cache(maxsize=256)
def exchange(source: Axes, target: Axes, sizes: tuple[int, ...], processes: tuple[int, ...]) -> Exchange:
    """From the blocks of ``source`` to those of ``target`` on a mesh of these sizes; ``processes`` has each device's.

    A device keeps what it has and is to have. Any other cell is sent to it by a device that has it, of the same process
    if there is one, and the one of these that has sent least so far.
    """
    blocks = [[math.prod(sizes[axis] for axis in axes) for axes in entries] for entries in (source, target)]
    cuts = tuple(map(math.lcm, *blocks))
    places = list(np.ndindex(*sizes))
    held = [_cells(cuts, source, sizes, place) for place in places]
    wanted = [_cells(cuts, target, sizes, place) for place in places]
    devices = len(places)
    at = [{int(cell): i for i, cell in enumerate(cells)} for cells in held]
    holders: dict[int, list[int]] = {}
    for device, cells in enumerate(held):
        for cell in cells:
            holders.setdefault(int(cell), []).append(device)
    sent = [0] * devices
    # For each pair of devices, the places of the cells: where they are sent from, and where they are wanted.
    routes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for device, cells in enumerate(wanted):
        for i, cell in enumerate(map(int, cells)):
            sender = device
            if cell not in at[device]:
                near = [other for other in holders[cell] if processes[other] == processes[device]]
                # Among those that have sent equally much, the next in a circle: neighbours then choose differently.
                sender = min(near or holders[cell], key=lambda other: (sent[other], (other - device) % devices))
                sent[sender] += 1
            routes.setdefault((sender, device), []).append((at[sender][cell], i))
    count = np.zeros((devices, devices), np.int32)
    for pair, ends in routes.items():
        count[pair] = len(ends)
    sent_from = np.zeros((devices, int(count.sum(1).max())), np.int32)
    lies_at = np.zeros((devices, len(wanted[0])), np.int32)
    for device in range(devices):
        leaving = [place for other in range(devices) for place, _ in routes.get((device, other), ())]
        sent_from[device, : len(leaving)] = leaving
        arriving = [place for other in range(devices) for _, place in routes.get((other, device), ())]
        lies_at[device, arriving] = np.arange(len(arriving))
    along = [tuple(cut // block for cut, block in zip(cuts, counts, strict=True)) for counts in blocks]
    return Exchange(along[0], along[1], sent_from, count, lies_at, any(sent))
