"""Calls of every parallel operation of `jax.lax`, on a 2 x 4 mesh, and what is asked of each."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

SHAPE = (8, 8)  # of each rank's value
RING = [(0, 1), (1, 2), (2, 3)]  # rank 0 of "y" receives nothing


@dataclasses.dataclass(frozen=True)
class Case:
    """``call(lax, x)`` on a rank's value; ``primitives`` that it binds with check_vma, without; "" where it has no
    meaning there. ``grad``: whether JAX differentiates it. ``vmap``: a dimension over which it batches it."""

    call: Any
    primitives: tuple[str, str]
    grad: bool = True
    vmap: int | None = 2


def unreduced(lax: Any, x: Any) -> Any:
    return jax.lax.pcast(x, "x", to="unreduced")


CASES = {
    "psum": Case(lambda lax, x: lax.psum(x, "x"), ("psum_invariant", "psum")),
    "psum tuple": Case(lambda lax, x: lax.psum(x, ("y", "x")), ("psum_invariant", "psum")),
    "psum groups": Case(lambda lax, x: lax.psum(x, "y", axis_index_groups=[[0, 2], [3, 1]]), ("", "psum"), vmap=None),
    "psum positional": Case(lambda lax, x: lax.psum(x, (1, "x")), ("", "psum")),
    "psum bool": Case(lambda lax, x: lax.psum(x > 3, "y"), ("psum_invariant", "psum"), grad=False),
    "psum tree": Case(lambda lax, x: sum(lax.psum({"a": x, "b": (2 * x,)}, "y")["b"]), ("psum_invariant", "psum")),
    "pmean": Case(lambda lax, x: lax.pmean(x, ("x", "y")), ("psum_invariant", "psum")),
    "pmax": Case(lambda lax, x: lax.pmax(x, "y"), ("pmax", "pmax"), grad=False),
    "pmin": Case(lambda lax, x: lax.pmin(x, ("y", "x")), ("pmin", "pmin"), grad=False),
    "all_gather": Case(lambda lax, x: lax.all_gather(x, "y"), ("all_gather", "all_gather")),
    "all_gather axis": Case(lambda lax, x: lax.all_gather(x, "x", axis=-1), ("all_gather", "all_gather")),
    "all_gather tuple": Case(
        lambda lax, x: lax.all_gather(x, ("y", "x"), axis=1, tiled=True), ("all_gather", "all_gather")
    ),
    "all_gather groups": Case(
        lambda lax, x: lax.all_gather(x, "y", axis_index_groups=[[0, 2], [3, 1]]), ("all_gather", "all_gather")
    ),
    "all_gather invariant": Case(
        lambda lax, x: lax.all_gather(x, "y", tiled=True, to="invarying"),
        ("all_gather_invariant", "all_gather_invariant"),
        grad=False,
    ),
    "all_gather reduced": Case(
        lambda lax, x: jax.lax.pcast(lax.all_gather(x, "y", tiled=True, to="reduced"), "y", to="varying"),
        ("all_gather_reduced", ""),
        vmap=None,
    ),
    # JAX's batching of it fails over later dimensions.
    "psum_scatter": Case(lambda lax, x: lax.psum_scatter(x[:4], "y"), ("reduce_scatter", "reduce_scatter"), vmap=0),
    "psum_scatter tiled": Case(
        lambda lax, x: lax.psum_scatter(x, ("y", "x"), scatter_dimension=1, tiled=True),
        ("reduce_scatter", "reduce_scatter"),
    ),
    "psum unreduced": Case(
        lambda lax, x: lax.psum(unreduced(lax, x), "x"), ("unreduced_psum", ""), grad=False, vmap=None
    ),
    "psum_scatter unreduced": Case(
        lambda lax, x: lax.psum_scatter(unreduced(lax, x), "x", tiled=True),
        ("unreduced_reduce_scatter", ""),
        grad=False,
        vmap=None,
    ),
    "all_to_all": Case(lambda lax, x: lax.all_to_all(x[:, :4], "y", 1, 0), ("all_to_all", "all_to_all"), grad=False),
    "all_to_all forward": Case(
        lambda lax, x: lax.all_to_all(x[:2], "x", 0, 1), ("all_to_all", "all_to_all"), grad=False
    ),
    "all_to_all tiled": Case(
        lambda lax, x: lax.all_to_all(x, ("y", "x"), 0, 1, tiled=True), ("all_to_all", "all_to_all")
    ),
    "pswapaxes": Case(lambda lax, x: lax.pswapaxes(x[:4], "y", 0), ("all_to_all", "all_to_all")),
    "ppermute": Case(lambda lax, x: lax.ppermute(x, "y", RING), ("ppermute", "ppermute")),
    "ppermute negative": Case(lambda lax, x: lax.ppermute(x, "y", [(-1, 0), (0, -1)]), ("ppermute", "ppermute")),
    "ppermute tuple": Case(
        lambda lax, x: lax.ppermute(x, ("x", "y"), [(i, (i + 3) % 8) for i in range(8)]), ("ppermute", "ppermute")
    ),
    "pshuffle": Case(lambda lax, x: lax.pshuffle(x, "y", [2, 0, 3, 1]), ("ppermute", "ppermute")),
}


def mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))


def operand() -> Any:
    """Small integers, so that sums are exact in any order."""
    return jnp.asarray(np.random.default_rng(3).integers(-9, 9, (8, *SHAPE)), jnp.float32)


def chosen(check_vma: bool) -> dict[str, Case]:
    """The cases that have a meaning with this check_vma."""
    return {name: case for name, case in CASES.items() if case.primitives[not check_vma]}


def program(lax: Any, check_vma: bool) -> Any:
    """A jitted function of `operand`: for each case its value and VJP, and both under vmap."""

    def spread(y: Any) -> Any:
        return jnp.reshape(y, (1, -1))

    def both(case: Case, f: Any, x: Any) -> list[Any]:
        if not case.grad:
            return [spread(f(x))]
        y, pull = jax.vjp(f, x)
        weights = jnp.arange(y.size, dtype=y.dtype).reshape(y.shape) % 5
        return [spread(y), spread(pull(weights + 0 * y)[0])]

    def one(case: Case, x: Any) -> list[Any]:
        f = lambda x: case.call(lax, x)  # noqa: E731
        out = both(case, f, x)
        if case.vmap is None:
            return out
        return out + both(case, jax.vmap(f, in_axes=case.vmap), jnp.stack([x, x + 1, 2 * x], axis=case.vmap))

    def rank(x: Any) -> dict[str, list[Any]]:
        return {name: one(case, x[0]) for name, case in chosen(check_vma).items()}

    specs = P(("x", "y"))
    return jax.jit(jax.shard_map(rank, mesh=mesh(), in_specs=specs, out_specs=specs, check_vma=check_vma))


def run(f: Any) -> tuple[dict[str, list[np.ndarray]], set[str], set[str]]:
    """The results by case, and the names of our and of XLA's collectives in the lowered program."""
    lowered = f.lower(operand())
    text = lowered.as_text()
    theirs = r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_\w+)|@(ragged_all_to_all)"
    found = {a or b for a, b in re.findall(theirs, text)}
    results = jax.tree.map(np.asarray, lowered.compile()(operand()))
    return results, set(re.findall(r"@jaxring_(\w+)", text)), found
