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
from tests.resharding.reshard_checks import DEVICES, check, made

DTYPES = ["float32", "int8", "bfloat16", "bool", "int4", "int2", "uint2", "float4_e2m1fn", "complex128"]
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


def disagree():
    """Each process asks for another result, or has another array, and is told."""
    mesh = Mesh(np.array(DEVICES), ("a",))
    rows, columns, whole = (NamedSharding(mesh, spec) for spec in (P("a"), P(None, "a"), P()))
    side, first = len(DEVICES), jax.process_index() == 0
    # Every part changes its process, and then those of one process change places.
    turned = np.roll(DEVICES, side // jax.process_count())
    swapped = np.concatenate([turned[:-2], turned[:-3:-1]])
    # Another sharding; a dtype of as many bytes; a shape of as many elements, whose routes are the same; how much a
    # round holds; and, of an array that a program could move, another order of the devices of a process.
    differing = [
        ((side, side), np.float32, whole if first else columns, 1 << 20),
        ((side, side), np.float32 if first else np.int32, whole, 1 << 20),
        ((side, 4) if first else (side, 2, 2), np.float32, whole, 1 << 20),
        ((side, 1 << 16), np.float32, whole, 1 << 17 if first else 1 << 18),
    ]
    if side > jax.process_count():
        order = NamedSharding(Mesh(turned if first else swapped, ("a",)), P("a"))
        differing.append(((side, side), np.float32, order, 1 << 20))
    for shape, dtype, to, round_bytes in differing:
        with pytest.raises(
            jaxring.JaxringError, match=r"process\(es\) .* called it with other arrays or shardings than"
        ):
            jaxring.reshard(made(np.zeros(shape, dtype), rows), to, round_bytes=round_bytes)


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
        moved.append(check(comm, leaves, 1 << 16, data.draw(st.booleans())))

    run()
    # Many rounds, from half of the processes to the other.
    half = len(DEVICES) // 2
    values = np.arange(600 * 576, dtype=np.float32).reshape(600, 576)
    pair = [NamedSharding(Mesh(np.array(few), ("a",)), P(*spec)) for few, spec in
            ((DEVICES[:half], ("a",)), (DEVICES[half:], (None, "a")))]  # fmt: skip
    moved.append(check(comm, [(values, *pair)], 1 << 16))
    if jax.process_count() > 1:
        disagree()
    if len(DEVICES) % 2 == 0:
        traced(comm)
    print("moved", len(moved), sum(moved))


if __name__ == "__main__":
    main()
