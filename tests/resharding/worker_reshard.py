"""Reshards random arrays between random shardings, the same on all processes. usage: worker_reshard.py EXAMPLES"""

from __future__ import annotations

import math
import sys

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring

DIGEST_BYTES = 8
DEVICES = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
DTYPES = ["float32", "int8", "bfloat16", "bool", "int4", "complex128"]
SHAPES = [(12, 24), (24,), (4, 12, 6), (144, 96)]


@st.composite
def shardings(draw, shape):
    """A sharding of ``shape`` over a mesh of some of the devices, in any order."""
    sizes = draw(
        st.sampled_from([s for s in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (4, 4)] if math.prod(s) <= len(DEVICES)])
    )
    order = draw(st.permutations(range(len(DEVICES))))[: math.prod(sizes)]
    mesh = Mesh(np.array([DEVICES[i] for i in order]).reshape(sizes), ("a", "b"))
    entries: list[tuple[str, ...]] = [() for _ in shape]
    for name, size in zip(("a", "b"), sizes, strict=True):
        at = draw(st.sampled_from([None, *range(len(shape))]))
        cuts = size if at is None else size * math.prod(mesh.shape[other] for other in entries[at])
        if at is not None and shape[at] % cuts == 0:
            entries[at] = (*entries[at], name)
    return NamedSharding(mesh, P(*(entry or None for entry in entries)))


def made(values, sharding):
    """The array, or in a process without a part of it what stands for it."""
    if not sharding.addressable_devices:
        return jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def least(shape, itemsize, source, target):
    """The bytes that no process can do without."""
    total = 0
    for process in {d.process_index for d in target.device_set}:
        needed = np.zeros(shape, bool)
        for sharding, mark in ((target, True), (source, False)):
            for device, index in sharding.devices_indices_map(shape).items():
                if device.process_index == process:
                    needed[index] = mark
        total += int(needed.sum()) * itemsize
    return total


def check(comm, leaves, round_bytes):
    """Reshards a tree of (values, source, target) by all processes that have a part in it, and compares."""
    tree = [made(values, source) for values, source, _ in leaves]
    before = jaxring.counters()["sent_bytes"]
    results = jaxring.reshard(tree, [target for _, _, target in leaves], round_bytes=round_bytes)
    sent = np.array([jaxring.counters()["sent_bytes"] - before])
    total = int(comm.all_reduce(sent)[0])
    for result, (values, _, target) in zip(results, leaves, strict=True):
        assert result.sharding == target
        assert (result.shape, result.dtype) == (values.shape, values.dtype)
        for shard in getattr(result, "addressable_shards", ()):
            np.testing.assert_array_equal(np.asarray(shard.data), values[shard.index])
    minimum = sum(least(values.shape, values.dtype.itemsize, *pair) for values, *pair in leaves)
    taking_part = {d.process_index for _, *pair in leaves for sharding in pair for d in sharding.device_set}
    agreement = DIGEST_BYTES * len(taking_part) * (len(taking_part) - 1) if minimum else 0
    assert total == minimum + agreement, (total, minimum, agreement)
    return minimum


def as_programs(comm):
    """Arrays that are moved by a program each: whole shards, and cells of small arrays."""
    over = np.array(DEVICES)
    grid = over.reshape(2, -1)

    def by(devices, *spec):
        return NamedSharding(Mesh(devices, ("a", "b")[: devices.ndim]), P(*spec))

    pairs = [
        (by(over, "a"), by(over[::-1], "a")),
        (by(over, "a"), by(np.roll(over, 1), "a")),
        (by(grid, "a", "b"), by(grid, "b", "a")),
        (by(over, "a"), by(over, None, "a")),
        (by(grid, "a"), by(grid, None, "a")),
    ]
    for side in (48, 960):
        for source, target in pairs:
            values = np.arange(side * side, dtype=np.float32).reshape(side, side)
            check(comm, [(values, source, target)], 4 << 20)


def disagree():
    """Each process asks for another result, or has another array, and is told."""
    mesh = Mesh(np.array(DEVICES), ("a",))
    rows, columns, whole = (NamedSharding(mesh, spec) for spec in (P("a"), P(None, "a"), P()))
    side, first = len(DEVICES), jax.process_index() == 0
    # Another sharding; a dtype of as many bytes; a shape of as many elements, whose routes are the same.
    differing = (
        ((side, side), np.float32, whole if first else columns),
        ((side, side), np.float32 if first else np.int32, whole),
        ((side, 4) if first else (side, 2, 2), np.float32, whole),
    )
    for shape, dtype, to in differing:
        with pytest.raises(jaxring.JaxringError, match=r"process\(es\) .* mean other arrays or shardings than process"):
            jaxring.reshard(made(np.zeros(shape, dtype), rows), to)


def traced(comm):
    """Inside a program: right, and what no device of a process has is sent once to each of its devices that need it."""
    mesh = Mesh(np.array(DEVICES).reshape(-1, 2), ("a", "b"))
    shape, process = (48, 96), np.array([d.process_index for d in DEVICES])
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    pairs = [
        (P("a", "b"), P("b", "a")),
        (P("a"), P(None, "a")),
        (P(("a", "b")), P()),
        (P("a"), P()),
        (P(None, "b"), P("b")),
    ]
    for source, target in pairs:
        before, to = NamedSharding(mesh, source), NamedSharding(mesh, target)
        run = jax.jit(lambda x, before=before, to=to: jaxring.reshard(x, to, from_sharding=before))
        x = made(values, before)
        jax.block_until_ready(run(x))
        start = jaxring.counters()["sent_bytes"]
        y = jax.block_until_ready(run(x))
        total = int(comm.all_reduce(np.array([jaxring.counters()["sent_bytes"] - start]))[0])
        for shard in y.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), values[shard.index])
        needed = 0
        held, wanted = (sharding.devices_indices_map(shape) for sharding in (before, to))
        for number, device in enumerate(DEVICES):
            missing = np.zeros(shape, bool)
            missing[wanted[device]] = True
            missing[held[device]] = False
            local = np.zeros(shape, bool)
            for other in np.flatnonzero(process == process[number]):
                local[held[DEVICES[other]]] = True
            needed += int((missing & ~local).sum()) * values.itemsize
        assert total == needed, (source, target, total, needed)


def main():
    jax.config.update("jax_enable_x64", True)  # for complex128
    comm, moved = jaxring.Communicator(), []

    # Without a database and with fixed choices, every process draws the same examples.
    @settings(
        max_examples=int(sys.argv[1]),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data):
        leaves = []
        # Of more than a few, small arrays go in rounds.
        for _ in range(data.draw(st.sampled_from([1, 2, 3, 6]))):
            shape = data.draw(st.sampled_from(SHAPES))
            dtype = jax.numpy.dtype(data.draw(st.sampled_from(DTYPES)))
            values = (np.arange(math.prod(shape)) % 251).astype(dtype).reshape(shape)
            leaves.append((values, data.draw(shardings(shape)), data.draw(shardings(shape))))
        moved.append(check(comm, leaves, 1 << 16))

    run()
    # Many rounds, from half of the processes to the other.
    half = len(DEVICES) // 2
    values = np.arange(600 * 512, dtype=np.float32).reshape(600, 512)
    pair = [NamedSharding(Mesh(np.array(few), ("a",)), P(*spec)) for few, spec in
            ((DEVICES[:half], ("a",)), (DEVICES[half:], (None, "a")))]  # fmt: skip
    moved.append(check(comm, [(values, *pair)], 1 << 16))
    disagree()
    if len(DEVICES) % 2 == 0:
        traced(comm)
        as_programs(comm)
    print("moved", len(moved), sum(moved))


if __name__ == "__main__":
    main()
