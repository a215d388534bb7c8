"""Meshes, axes and groups: how results are typed, axes of one rank, partially manual and nested regions."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from jax.lax import psum
from jax.sharding import PartitionSpec as P

import jaxring
from tests.collectives.cases.coll_calls import call
from tests.collectives.cases.coll_meshes import TABLES, check_lines, line_data, line_program, members
from tests.collectives.cases.coll_ranks import Ranks, Report


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.sampled(2)
def test_table(ranks, table):
    report = Report()
    TABLES[table](ranks(8), report)
    assert report.checks > 0
    assert not report.failures, f"{len(report.failures)} of {report.checks}:\n" + "\n".join(report.failures[:40])


def run_lines_checked(ranks, program, n=8, **options):
    report, data, lines = Report(), line_data(ranks.n, n), members([("x", ranks.n)], "x")
    check_lines(report, "", ranks.run(program, data, **options), data, lines)
    assert not report.failures, "\n".join(report.failures[:20])


@pytest.mark.parametrize("check_vma", [True, False])
def test_check_vma(ranks, check_vma):
    run_lines_checked(ranks(8), line_program(8, "x"), check_vma=check_vma)


@pytest.mark.parametrize("name", ["all_reduce", "broadcast"])
def test_the_same_value_on_all_ranks_is_typed_as_such(ranks, name):
    mesh = ranks(8).mesh
    x = np.arange(24.0).reshape(8, 3)
    f = jax.shard_map(
        lambda v: getattr(jaxring, name)(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=True
    )
    expected = x.sum(axis=0) if name == "all_reduce" else x[0]
    np.testing.assert_array_equal(jax.jit(f)(x)[0], expected)


@pytest.mark.parametrize(
    "name", ["all_gather", "all_to_all", "reduce_scatter", "permute", "reduce", "gather", "scatter"]
)
def test_a_value_that_may_differ_between_ranks_is_typed_as_such(ranks, name):
    mesh = ranks(8).mesh
    f = jax.shard_map(
        lambda v: call(name, v[0], "sum", perm=[(0, 1)])[None],
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P(),
        check_vma=True,
    )
    with pytest.raises(ValueError, match="out_specs"):
        jax.eval_shape(f, np.zeros((8, 8, 3)))


def test_a_replicated_operand_counts_once_for_each_rank(ranks):
    mesh = ranks(8).mesh

    def total(v):
        return jaxring.all_reduce(v, "x", assume_replicated=True)

    f = jax.shard_map(total, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=True)
    np.testing.assert_array_equal(jax.jit(f)(np.arange(3.0)), 8 * np.arange(3.0))


@pytest.mark.parametrize("axes", [(("a", 8), ("b", 1)), (("b", 1), ("a", 8)), (("b", 1), ("a", 4), ("c", 2))])
@pytest.mark.sampled(3)
def test_axes_of_one_rank(ranks, axes):
    grid, report = Ranks(jax.devices(), axes), Report()
    for over in ("b", ("a", "b"), ("b", "a"), "a", ("b",)):
        lines = members(axes, over)
        n = len(lines[0])
        data = line_data(8, n)
        for check_vma in (True, False):
            check_lines(report, f"{over}", grid.run(line_program(n, over), data, check_vma=check_vma), data, lines)
    assert not report.failures, "\n".join(report.failures[:20])


def test_an_empty_tuple_of_axes_is_the_identity(ranks):
    x = np.arange(6.0).reshape(2, 3)
    got = ranks(2).run(lambda t: {"y": jaxring.all_reduce(t["x"], ())}, {"x": x})["y"]
    for rank, value in got.items():
        np.testing.assert_array_equal(value, x[rank])


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("manual", ["a", "b"])
def test_partially_manual_mesh(manual, check_vma):
    axes = (("a", 2), ("b", 4))
    grid = Ranks(jax.devices(), axes)
    sizes = dict(axes)
    n = sizes[manual]
    x = np.arange(8 * 12.0).reshape(8, 12)
    other = "b" if manual == "a" else "a"

    def f(v):
        return jaxring.all_reduce(v, manual), jaxring.all_gather(v, manual, tiled=True)

    mapped = jax.shard_map(
        f,
        mesh=grid.mesh,
        in_specs=P(manual),
        out_specs=(P(manual), P(manual)),
        axis_names={manual},
        check_vma=check_vma,
    )
    placed = jax.device_put(x, jax.sharding.NamedSharding(grid.mesh, P(manual, other)))
    summed, gathered = jax.jit(mapped)(placed)
    np.testing.assert_array_equal(summed, np.tile(x.reshape(n, -1, 12).sum(axis=0), (n, 1)))
    np.testing.assert_array_equal(gathered, np.tile(x, (n, 1)))


def test_nested_manual_regions():
    grid = Ranks(jax.devices(), (("a", 2), ("b", 4)))
    x = np.arange(8 * 3.0).reshape(8, 3)

    def inner(v):
        return jaxring.all_reduce(v, "b"), jaxring.all_reduce(v, ("a", "b"))

    def outer(v):
        return jax.shard_map(inner, in_specs=P("b"), out_specs=(P("b"), P("b")), axis_names={"b"}, check_vma=False)(v)

    mapped = jax.shard_map(
        outer, mesh=grid.mesh, in_specs=P("a"), out_specs=(P("a"), P("a")), axis_names={"a"}, check_vma=False
    )
    b, ab = jax.jit(mapped)(x)
    lines = members((("a", 2), ("b", 4)), "b")
    np.testing.assert_array_equal(b, np.stack([x[lines[rank]].sum(axis=0) for rank in range(8)]))
    np.testing.assert_array_equal(ab, np.tile(x.sum(axis=0), (8, 1)))


def test_two_meshes_of_the_same_process_at_once():
    halves = [Ranks(jax.devices()[:4]), Ranks(jax.devices()[4:])]
    x = np.arange(12.0).reshape(4, 3)
    compiled = [r.compile(lambda t: {"y": jaxring.all_reduce(t, "x")}) for r in halves]
    placed = [r.put(x * (i + 1)) for i, r in enumerate(halves)]
    results = [[f(p) for f, p in zip(compiled, placed, strict=True)] for _ in range(20)]
    for pair in results:
        for i, result in enumerate(pair):
            np.testing.assert_array_equal(result["y"], np.tile(x.sum(axis=0) * (i + 1), (4, 1)))


@pytest.mark.parametrize("groups", [None, [[0, 3], [1, 2]]])
def test_the_program_shows_the_groups_as_jax_shows_its_own(ranks, groups):
    mesh = jax.sharding.Mesh(ranks(8).mesh.devices.reshape(2, 4), ("a", "b"))

    def shown(all_reduce):
        def f(v):
            return all_reduce(v, "b", axis_index_groups=groups)

        f = jax.shard_map(f, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")), check_vma=False)
        text = jax.jit(f).lower(np.zeros(8, np.float32)).as_text()
        written = re.search(r"replica_groups = (dense<.*?>|#stablehlo.*?axes = \[.*?\])", text)
        assert written, text
        # JAX has several names for one mesh at times.
        for name in re.findall(r"@mesh\w*", written[1]):
            assert re.search(rf'sdy\.mesh {name} = <\["a"=2, "b"=4\]>', text), text
        return re.sub(r"@mesh\w*", "@mesh", written[1])

    assert shown(jaxring.all_reduce) == shown(psum)
