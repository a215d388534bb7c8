"""The ways to call: eager, pmap, vmap, pytrees, scalars, control flow, one function twice."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from tests.collectives.cases.coll_calls import MOVING, REDUCING, call, has_blocks, moved, shift
from tests.collectives.cases.coll_meshes import check_lines, line_data, line_program, members
from tests.collectives.cases.coll_ranks import Report


def test_without_jit(ranks):
    report, data, lines = Report(), line_data(8, 8), members([("x", 8)], "x")
    r = ranks(8)
    program = line_program(8, "x")

    def one(tree):
        return jax.tree.map(lambda a: a[None], program(jax.tree.map(lambda a: a[0], tree)))

    eager = jax.shard_map(one, mesh=r.mesh, in_specs=P("x"), out_specs=P("x"))
    check_lines(report, "eager", r.values(eager(jax.tree.map(r.put, data))), data, lines)
    assert not report.failures, "\n".join(report.failures[:20])


def test_pmap():
    data, lines = line_data(8, 8), members([("i", 8)], "i")
    got = jax.pmap(line_program(8, "i"), axis_name="i")(data)
    report = Report()
    check_lines(report, "pmap", {k: dict(enumerate(np.asarray(v))) for k, v in got.items()}, data, lines)
    assert not report.failures, "\n".join(report.failures[:20])


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_vmap_over_a_dimension_of_the_data(ranks, batch):
    n, size = 4, 3
    rng = np.random.default_rng(batch)
    data = {
        "flat": rng.integers(-99, 99, (n, size, 6, 7)),
        "blocks": rng.integers(-99, 99, (n, size, n, 5)),
    }
    placed = {name: np.moveaxis(x, 1, 1 + batch) for name, x in data.items()}

    def program(tree):
        return {
            c: jax.vmap(lambda v, c=c: call(c, v, "sum", root=1, perm=shift(n)), in_axes=batch, out_axes=0)(
                tree["blocks" if has_blocks(c) else "flat"]
            )
            for c in (*REDUCING, *MOVING)
        }

    got = ranks(n).run(program, placed)
    for c, shards in got.items():
        x = data["blocks" if has_blocks(c) else "flat"]
        for rank, value in shards.items():
            if c in REDUCING:
                total = x.sum(axis=0)
                expected = total[:, rank] if c == "reduce_scatter" else total * (c == "all_reduce" or rank == 1)
            else:
                expected = np.stack([moved(c, x[:, k], rank, 1, shift(n)) for k in range(size)])
            np.testing.assert_array_equal(value, expected, err_msg=f"{c} rank {rank}")


def test_vmap_twice_and_of_send_and_ragged(ranks):
    n = 4
    x = np.arange(n * 2 * 3 * 5.0).reshape(n, 2, 3, 5)

    def program(tree):
        return {"y": jax.vmap(jax.vmap(lambda v: jaxring.all_reduce(v, "x")), in_axes=1, out_axes=1)(tree)}

    for value in ranks(n).run(program, x)["y"].values():
        np.testing.assert_array_equal(value, x.sum(axis=0))


def test_pytrees_leaf_by_leaf(ranks):
    n = 4
    data = {"a": np.arange(n * 3.0).reshape(n, 3), "b": (np.arange(n), [np.ones((n, 2, 2), np.int8)])}

    def program(tree):
        tree = {"a": tree["a"], "b": (tree["b"][0], None, [tree["b"][1][0]]), "none": None}
        summed = jaxring.all_reduce(tree, "x")
        assert jax.tree.structure(summed) == jax.tree.structure(tree)
        gathered = jaxring.all_gather(tree, "x")
        assert jax.tree.structure(gathered) == jax.tree.structure(tree)
        given = jaxring.broadcast(tree, "x", 2)
        empty = jaxring.all_reduce({"nothing": None}, "x")
        assert empty == {"nothing": None}
        return {
            "a": summed["a"], "b": summed["b"][0], "c": summed["b"][2][0], "gathered": gathered["b"][0],
            "given": given["a"],
        }  # fmt: skip

    got = ranks(n).run(program, data)
    for rank in range(n):
        np.testing.assert_array_equal(got["a"][rank], data["a"].sum(axis=0))
        np.testing.assert_array_equal(got["b"][rank], data["b"][0].sum())
        np.testing.assert_array_equal(got["c"][rank], np.full((2, 2), n))
        np.testing.assert_array_equal(got["gathered"][rank], data["b"][0])
        np.testing.assert_array_equal(got["given"][rank], data["a"][2])


def test_python_scalars(ranks):
    got = ranks(3).run(lambda t: {"y": jaxring.all_reduce(2, "x") + t["x"], "z": jaxring.all_reduce(0.5, "x", "mean")},
                       {"x": np.zeros(3)})  # fmt: skip
    assert all(value == 6 for value in got["y"].values())
    assert all(value == 0.5 for value in got["z"].values())


def test_control_flow(ranks):
    n = 8
    x = np.arange(n * 4, dtype=np.int32).reshape(n, 4)

    def program(tree):
        v = tree["x"]

        def body(carry, k):
            return jaxring.all_reduce(carry, "x") % 1000 + k, jaxring.permute(carry, "x", shift(n))

        out, ys = jax.lax.scan(body, v, jnp.arange(9, dtype=jnp.int32))
        looped = jax.lax.while_loop(
            lambda c: c[0] < 7, lambda c: (c[0] + 1, jaxring.all_reduce(c[1], "x") % 77), (0, v)
        )
        chosen = jax.lax.cond(
            tree["flag"], lambda v: jaxring.all_reduce(v, "x"), lambda v: jaxring.all_reduce(v, "x", "max"), v
        )
        return {"out": out, "ys": ys, "loop": looped[1], "cond": chosen}

    got = ranks(n).run(program, {"x": x, "flag": np.zeros(n, bool)}, check_vma=False)
    carry, steps, loop = x, [], x
    for k in range(9):
        steps.append(carry)
        carry = np.tile(carry.sum(axis=0, dtype=np.int32) % 1000 + k, (n, 1)).astype(np.int32)
    for _ in range(7):
        loop = np.tile(loop.sum(axis=0, dtype=np.int32) % 77, (n, 1))
    for rank in range(n):
        np.testing.assert_array_equal(got["out"][rank], carry[rank])
        np.testing.assert_array_equal(got["loop"][rank], loop[rank])
        np.testing.assert_array_equal(got["cond"][rank], x.max(axis=0))
        for k in range(9):
            np.testing.assert_array_equal(got["ys"][rank][k], moved("permute", steps[k], rank, 0, shift(n)))


def test_one_jitted_function_called_twice_in_a_program(ranks):
    x = np.arange(8 * 3.0).reshape(8, 3)
    inner = jax.jit(lambda v: jaxring.all_reduce(v, "x"))
    got = ranks(8).run(lambda t: {"a": inner(t), "b": inner(inner(t) * 0 + 1)}, x, check_vma=False)
    for rank in range(8):
        np.testing.assert_array_equal(got["a"][rank], x.sum(axis=0))
        np.testing.assert_array_equal(got["b"][rank], np.full(3, 8.0))
