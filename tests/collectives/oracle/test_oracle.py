"""JAXRING_CHECKSUM=oracle: results are computed a second way, and the first that differs is named."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.errors import JaxringError
from jaxring.plan.collectives import COLLECTIVES, Arguments
from jaxring.tracing import oracle

N = 4


def operands(dtype, blocks=()):
    # The same for each test, whichever ran before in its process: not all values leave room for an error in int8.
    values = np.random.default_rng(3).standard_normal((N, *blocks, 3, 5)) * 4
    return values.astype(dtype) if np.dtype(dtype).kind != "c" else (values + 1j * values[::-1]).astype(dtype)


DTYPES = ("int8", "uint32", "float16", "float32", "float64", "complex64", ml_dtypes.bfloat16)
NO_MEANING = {("i", "mean"), ("u", "mean"), ("c", "max")}


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (op, dtype)
        for op in ("sum", "prod", "max", "mean")
        for dtype in DTYPES
        if (np.dtype(dtype).kind, op) not in NO_MEANING
    ],
)
def test_sums_in_any_order_pass_and_others_do_not(op, dtype):
    parts = operands(dtype)
    wide = np.float32 if parts.dtype.itemsize == 2 else parts.dtype
    y = parts[0].astype(wide)
    for part in parts[1:]:
        with np.errstate(all="ignore"):
            y = {"prod": np.multiply, "max": np.maximum}.get(op, np.add)(y, part.astype(wide)).astype(wide)
    y = (y / N if op == "mean" else y).astype(dtype)
    given = Arguments(N)
    oracle.compare("all_reduce", "the call", op, given, parts, y, 2)
    wrong = y.copy()
    wrong[1, 2] += wrong[1, 2] / 8 + np.asarray(1, dtype)
    with pytest.raises(
        JaxringError, match=r"the call: element \[1, 2\] of rank 2's result of shape \[3, 5\] .*1 of 15"
    ):
        oracle.compare("all_reduce", "the call", op, given, parts, wrong, 2)


@pytest.mark.parametrize("name", [each for each, facts in COLLECTIVES.items() if not facts.ragged])
def test_each_collective_has_its_second_way(name):
    facts = COLLECTIVES[name]
    parts = operands("int32", (N,) if facts.blocks_in else ())
    given = Arguments(N, 1 if facts.root.name != "NONE" else 0, ((0, 1), (1, 3)) if facts.pairs else ())
    for rank in range(N):
        blocks = []
        for source in facts.results(given, rank):
            if source is None:
                blocks.append(np.zeros((3, 5), np.int32))
            elif hasattr(source, "rank"):
                blocks.append(parts[source.rank][source.block] if facts.blocks_in else parts[source.rank])
            else:
                blocks.append((parts[:, source.block] if facts.blocks_in else parts).sum(0, dtype=np.int32))
        y = np.stack(blocks) if facts.blocks_out else blocks[0]
        oracle.compare(name, "it", "sum", given, parts, y, rank)
        y = y.copy()
        y[(-1,) * y.ndim] ^= 1
        with pytest.raises(JaxringError, match=f"rank {rank}'s result"):
            oracle.compare(name, "it", "sum", given, parts, y, rank)


def test_infinity_and_nan():
    parts = np.zeros((N, 4), np.float32)
    parts[0] = [np.nan, np.inf, 3e38, 1]
    parts[1] = [1, -np.inf, 3e38, np.inf]
    with np.errstate(all="ignore"):
        y = parts.sum(0)
    oracle.compare("all_reduce", "it", "sum", Arguments(N), parts, y, 0)
    y[0] = 1
    with pytest.raises(JaxringError, match=r"element \[0\] .* is 1.0, but the operands of all ranks make nan"):
        oracle.compare("all_reduce", "it", "sum", Arguments(N), parts, y, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "bfloat16"])
@pytest.mark.parametrize("huge_first", [True, False])
def test_a_product_whose_partial_result_leaves_the_range(dtype, huge_first):
    """The exact product is one of the second way's values; what the order makes of it is no fault."""
    huge, small = (1e200, 1e-200) if dtype == "float64" else (1e30, 1e-30)
    parts = np.ones((N, 2)).astype(jax.numpy.dtype(dtype))
    parts[:, 0] = [huge, huge, small, small] if huge_first else [small, small, huge, huge]
    parts[:, 1] = [2, 0, 3, 4]
    y = parts[0].astype(np.float32 if dtype == "bfloat16" else dtype)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            y = y * part.astype(y.dtype)
    y = y.astype(parts.dtype)
    assert not np.isclose(complex(y[0]), 1)
    oracle.compare("all_reduce", "it", "prod", Arguments(N), parts, y, 0)
    y[1] = 24
    with pytest.raises(JaxringError, match=r"element \[1\] .* 1 of 2 elements"):
        oracle.compare("all_reduce", "it", "prod", Arguments(N), parts, y, 0)


def program(mesh):
    def step(x):
        loss = lambda v: (jaxring.all_reduce(v * v, "a", "mean") ** 2).sum()  # noqa: E731
        y = jaxring.all_gather(x, ("a", "b"), tiled=True)
        z = jaxring.all_to_all(x, "b", split_axis=0, concat_axis=0, tiled=True)
        g = jaxring.all_reduce(x, ("a", "b"), axis_index_groups=[[0, 2], [3, 1]])
        return jax.grad(loss)(x).sum() + y.sum() + z.sum() + g.sum() + jaxring.broadcast(x, "b", root=1).sum()

    return jax.jit(
        jax.shard_map(
            lambda x: step(x)[None], mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")), check_vma=False
        )
    )


def test_a_program_is_checked_and_a_fault_in_it_is_named(consulted, monkeypatch):
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4])
    x = np.random.default_rng(4).standard_normal(32).astype(np.float32)
    x = jax.device_put(x, jax.NamedSharding(mesh, P(("a", "b"))))
    compared, found = consulted
    jax.block_until_ready(program(mesh)(x))
    jax.effects_barrier()
    assert {name for name, _ in compared} == {"all_reduce", "all_gather", "all_to_all", "broadcast"}
    assert all("test_oracle.py" in call for _, call in compared)
    assert not found
    watch = oracle.watch

    def faulty(name, x, y, *rest):
        watch(name, x, y.at[0, 3].add(1) if name == "all_to_all" else y, *rest)

    monkeypatch.setattr(oracle, "watch", faulty)
    jax.block_until_ready(program(mesh)(x))
    jax.effects_barrier()
    assert len(found) == 4
    assert all("all_to_all over 'b' (test_oracle.py:" in each for each in found)
    assert all("element [3] of block 0 of rank " in each for each in found)


@pytest.mark.parametrize("consulted", ["oracle:2"], indirect=True)
@pytest.mark.parametrize("check_vma", [True, False])
def test_each_call_is_checked_on_each_device_in_every_second_execution(consulted, check_vma):
    """Leaves and calls in a loop have the same line; devices that differ in the other axis have the same rank."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4])

    def step(x):
        leaves = jaxring.all_reduce({"one": x, "two": 2 * x}, "a")
        return sum((jaxring.all_reduce(leaf, "b") for leaf in leaves.values()), x)

    specs = {"in_specs": P(("a", "b")), "out_specs": P(("a", "b"))}
    sums = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=check_vma, **specs))
    x = jax.device_put(np.ones(4, np.float32), jax.NamedSharding(mesh, P(("a", "b"))))
    compared, found = consulted
    so_far = []
    for _ in range(4):
        jax.block_until_ready(sums(x))
        jax.effects_barrier()
        so_far.append(len(compared))
    assert so_far == [16, 16, 32, 32]
    assert not found
