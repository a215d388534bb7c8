"""A job of reduce-scatters, broadcasts and ragged all-to-alls of HLO, against NumPy.

XLA's partitioner inserts none of them on CPUs, so they come from exported programs, which JAX lowers without jaxring.
"""

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from tests.dropin.whole_program.wp_programs import exported, left, over, targets

ORDER = (2, 0, 1, 3)  # of the devices, two of each process
RANKS, WIDTH = 4, 16
mesh = jax.sharding.Mesh(np.array(jax.devices())[list(ORDER)].reshape(RANKS), ("x",))
GROUPS = [[0, 2], [3, 1]]  # each across both processes


def place(whole):
    return jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("x")), lambda index: whole[index])


def check(x, expected):
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


def run(f, wanted, *arguments):
    call = exported(over(mesh, f), *arguments, platform="cuda")
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(call).lower(*arguments).compile()
        assert (left(compiled), targets(compiled)) == ([], wanted), (left(compiled), targets(compiled))
        return [compiled(*arguments) for _ in range(2)][-1]


data = np.arange(RANKS * RANKS * 6, dtype=np.float32).reshape(RANKS * RANKS, 6) % 11
x = place(data)
parts = data.reshape(RANKS, RANKS, 6)

scattered, grouped = run(
    lambda x: (
        lax.psum_scatter(x, "x", scatter_dimension=0, tiled=True),
        lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True, axis_index_groups=GROUPS),
    ),
    {"reduce_scatter"},
    x,
)
check(scattered, parts.sum(0))
columns = np.empty((RANKS, RANKS, 3), np.float32)
for group in GROUPS:
    for i, rank in enumerate(group):
        columns[rank] = parts[group].sum(0)[:, 3 * i : 3 * i + 3]
check(grouped, columns.reshape(-1, 3))

for source in (0, 2):
    sent = run(lambda x, source=source: lax.pbroadcast(x, "x", source), {"broadcast"}, x)
    check(sent, np.tile(parts[source], (RANKS, 1)))

counts = np.random.default_rng(0).integers(0, 5, (RANKS, RANKS)).astype(np.int32)
came = counts.T.copy()
begins, lands = (np.cumsum(each, 1, dtype=np.int32) - each for each in (counts, came))
rows = np.random.default_rng(1).normal(size=(RANKS, WIDTH, 3)).astype(np.float32)
expected = np.full_like(rows, -1)
for sender in range(RANKS):
    for receiver in range(RANKS):
        n, begin, land = counts[sender, receiver], begins[sender, receiver], lands[receiver, sender]
        expected[receiver, land : land + n] = rows[sender, begin : begin + n]


def ragged(operand, output, *vectors):
    return lax.ragged_all_to_all(operand, output, *(v[0] for v in vectors), axis_name="x")


flat = rows.reshape(-1, 3)
vectors = (begins, counts, np.ascontiguousarray(lands.T), came)
got = run(ragged, {"all_to_all", "ragged_all_to_all"}, place(flat), place(np.full_like(flat, -1)), *map(place, vectors))
check(got, expected.reshape(-1, 3))
print("right", flush=True)
