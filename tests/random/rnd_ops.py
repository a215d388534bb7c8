"""The collectives of random programs under one signature: jaxring's own, and those of `jax.lax` or `jaxring.lax`.

What `jax.lax` does not have is put together from what it has.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxring

if TYPE_CHECKING:
    from collections.abc import Callable


class Ours:
    """`jaxring.*`."""

    name = "jaxring"

    def pcast(self, x: Any, axes: tuple[str, ...]) -> Any:
        return jaxring.pcast(x, axes)

    def collective(self, p: dict[str, Any], args: list[Any]) -> list[Any]:
        name, axes = p["name"], _axes(p)
        extra = {"axis_index_groups": p["groups"]} if "groups" in p else {}
        if name == "ragged_all_to_all":
            return [jaxring.ragged_all_to_all(*args, *_vectors(p), axis_name=axes)]
        if name == "message":
            token, found = jaxring.new_token(), []
            for x in args:
                token = jaxring.send(x, axes, p["perm"], token, tag=p["tag"])
            for x in args:
                y, token = jaxring.recv(x, axes, p["perm"], token, tag=p["tag"])
                found.append(y)
            # The last token is used where any value is, or JAX would drop a receive and keep what is sent to it.
            return list(lax.optimization_barrier((*found, token))[:-1])
        if name == "barrier":
            token = jaxring.barrier(axes)
            return [x + token.astype(x.dtype) for x in args]
        if p.get("asked"):
            extra["algorithm"] = p["asked"]
        if name in ("all_reduce", "reduce", "reduce_scatter"):
            extra["op"] = p["op"]
        if name in ("broadcast", "reduce", "gather", "scatter"):
            extra["root"] = p["root"]
        if name in ("all_gather", "gather", "scatter"):
            extra.update(axis=p["axis"], tiled=p["tiled"])
        if name == "reduce_scatter":
            extra.update(scatter_dimension=p["axis"], tiled=p["tiled"])
        if name == "all_to_all":
            extra.update(split_axis=p["split"], concat_axis=p["concat"], tiled=p["tiled"])
        if name == "permute":
            extra["perm"] = p["perm"]
        function = getattr(jaxring, name)
        if p.get("started"):
            function = getattr(jaxring, f"{name}_start")
            return _leaves(function(_tree(args), axes, **extra).done())
        return _leaves(function(_tree(args), axes, **extra))


class Lax:
    """The collectives of ``module``; ``ours``: jaxring carries them, and not XLA, which has no ragged one on CPUs."""

    def __init__(self, name: str, module: Any, ours: bool) -> None:
        self.name, self.lax, self.ours = name, module, ours

    def pcast(self, x: Any, axes: tuple[str, ...]) -> Any:
        return self.lax.pcast(x, axes, to="varying")

    def collective(self, p: dict[str, Any], args: list[Any]) -> list[Any]:
        name, axes, rank = p["name"], _axes(p), _rank(p)
        groups = {"axis_index_groups": p["groups"]} if "groups" in p else {}
        if not self.ours and p.get("tiled") and any(x.shape[p.get("axis", p.get("split"))] == 0 for x in args):
            # MLIR's verifier says so, maybe on a thread of its pool, by a handler that needs the GIL. jaxlib holds the
            # GIL while it waits for the pool, so the process may hang.
            raise NotImplementedError(f"XLA has no {name} along a dimension of length 0.")
        if name == "ragged_all_to_all":
            return [self._ragged(p, *args)]
        if name == "barrier":
            token = self.lax.psum(jnp.zeros((), jnp.uint32), axes)
            return [x + token.astype(x.dtype) for x in args]
        if name in ("permute", "message"):
            return _leaves(self.lax.ppermute(_tree(args), *_in_mesh_order(p)))
        if name == "all_to_all":
            arguments = (axes, p["split"], p["concat"])
            return _leaves(self.lax.all_to_all(_tree(args), *arguments, tiled=p["tiled"], **groups))
        if name in ("all_gather", "gather"):
            ys = _leaves(self.lax.all_gather(_tree(args), axes, axis=p["axis"], tiled=p["tiled"], **groups))
            return ys if name == "all_gather" else [self._only(y, rank == p["root"]) for y in ys]
        if name == "reduce_scatter" and p["op"] == "sum" and all(x.dtype != bool for x in args):
            scatter = functools.partial(self.lax.psum_scatter, scatter_dimension=p["axis"], tiled=p["tiled"])
            return _leaves(scatter(_tree(args), axes, **groups))
        if name in ("all_reduce", "reduce", "reduce_scatter"):
            ys = self._reduced(p, args, axes, groups)
            if name == "reduce":
                return [self._only(y, rank == p["root"]) for y in ys]
            return ys if name == "all_reduce" else [self._own(y, p, rank) for y in ys]
        if name == "broadcast":
            return [self._from_root(x, p, axes, groups) for x in args]
        assert name == "scatter", name
        return [self._own(self._from_root(x, p, axes, groups), p, rank) for x in args]

    def _reduced(self, p: dict[str, Any], args: list[Any], axes: Any, groups: Any) -> list[Any]:
        direct = {"sum": self.lax.psum, "mean": self.lax.pmean, "max": self.lax.pmax, "min": self.lax.pmin}
        if p["op"] in direct and not (p["op"] in ("max", "min") and any(x.dtype == bool for x in args)):
            return _leaves(direct[p["op"]](_tree(args), axes, **groups))
        folds: dict[str, Callable[[Any, Any], Any]] = {
            "prod": operator.mul,
            "and": operator.and_,
            "or": operator.or_,
            "xor": operator.xor,
            "max": jnp.maximum,
            "min": jnp.minimum,
        }
        found = []
        for x in args:
            every = self.lax.all_gather(x, axes, **groups)
            y = functools.reduce(folds[p["op"]], [every[i] for i in range(len(every))])
            found.append(y if groups else self._one_value(y, p, axes))
        return found

    def _one_value(self, y: Any, p: dict[str, Any], axes: Any) -> Any:
        """Equal values typed as one, where types say so."""
        if not set(p["axes"]) & set(jax.typeof(y).manual_axis_type.varying):
            return y
        kept = self._only(y.astype(jnp.int32) if y.dtype == bool else y, lax.axis_index(axes) == 0)
        return self.lax.psum(kept, axes).astype(y.dtype)

    def _from_root(self, x: Any, p: dict[str, Any], axes: Any, groups: Any) -> Any:
        y = self.lax.all_gather(x, axes, **groups)[p["root"]]
        return y if groups or p["name"] == "scatter" else self._one_value(y, p, axes)

    def _only(self, y: Any, here: Any) -> Any:
        return jnp.where(here, y, jnp.zeros_like(y))

    def _own(self, y: Any, p: dict[str, Any], rank: Any) -> Any:
        count, axis = p["ranks"], p["axis"]
        y = jnp.moveaxis(y, axis, 0)
        if not p["tiled"]:
            return lax.dynamic_index_in_dim(y, rank, 0, keepdims=False)
        y = lax.dynamic_index_in_dim(y.reshape(count, -1, *y.shape[1:]), rank, 0, keepdims=False)
        return jnp.moveaxis(y, 0, axis)

    def _ragged(self, p: dict[str, Any], x: Any, output: Any) -> Any:
        axes = _axes(p)
        # JAX's rule of jax.vmap fails where sizes are not batched; its transpose is wrong where empty parts land
        # together.
        if self.ours and not p["by_hand"]:
            return self.lax.ragged_all_to_all(x, output, *_vectors(p), axis_name=axes)
        every, rank = self.lax.all_gather(x, axes), lax.axis_index(axes)
        rows = jnp.arange(output.shape[0])
        sizes, starts, lands = (jnp.asarray(p[key]) for key in ("sizes", "starts", "lands"))
        for source in range(p["ranks"]):
            at = rows - lands[source][rank]
            comes = (at >= 0) & (at < sizes[source][rank])
            part = every[source][jnp.clip(at + starts[source][rank], 0, x.shape[0] - 1)]
            output = jnp.where(comes.reshape(-1, *[1] * (output.ndim - 1)), part, output)
        return output


def _axes(p: dict[str, Any]) -> Any:
    return p["axes"] if len(p["axes"]) > 1 or p.get("tuple") else p["axes"][0]


def _in_mesh_order(p: dict[str, Any]) -> tuple[Any, list[tuple[int, int]]]:
    """Axes and pairs: `jax.lax.ppermute` numbers ranks in the mesh's order, whatever the order of the names."""
    if len(p["axes"]) == 1:
        return _axes(p), p["perm"]
    order = sorted(range(len(p["axes"])), key=lambda i: p["places"][i])

    def other(rank: int) -> int:
        at = np.unravel_index(rank, p["shape"])
        return int(np.ravel_multi_index([at[i] for i in order], [p["shape"][i] for i in order]))

    return tuple(p["axes"][i] for i in order), [(other(s), other(t)) for s, t in p["perm"]]


def _rank(p: dict[str, Any]) -> Any:
    """This rank's number in its group."""
    index = lax.axis_index(p["axes"])
    if "groups" not in p:
        return index
    place = {rank: i for group in p["groups"] for i, rank in enumerate(group)}
    return jnp.asarray([place[i] for i in range(len(place))])[index]


def _vectors(p: dict[str, Any]) -> list[Any]:
    """The four vectors of this rank."""
    rank = lax.axis_index(p["axes"])
    sizes, starts, lands = (np.asarray(p[key], np.int32) for key in ("sizes", "starts", "lands"))
    return [jnp.asarray(m)[rank] for m in (starts, sizes, lands, sizes.T)]


def _tree(args: list[Any]) -> Any:
    return args[0] if len(args) == 1 else {"first": args[0], "rest": tuple(args[1:])}


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree)


OURS = Ours()
LAX = Lax("jax.lax", lax, ours=False)
OURS_LAX = Lax("jaxring.lax", jaxring.lax, ours=True)
INSTALLED = Lax("install()", lax, ours=True)
