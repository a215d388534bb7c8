"""Collectives on stacked values in NumPy: every rank's value in one array, ``[batch..., device, *shape]``.

The axes of a collective are manual axes of the mesh, whose row-major product is the device axis, and named axes of
`jax.vmap`, which are batch axes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.collectives.cases.coll_oracle import UFUNCS
from tests.random.rnd_dual import Dual, jointly, linear, mul, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Ranks:
    """The ranks over ``names``; ``batch`` are the batch axes, the first one first, (name or None, size)."""

    def __init__(
        self,
        mesh: Mapping[str, int],
        batch: Sequence[tuple[str | None, int]],
        names: Sequence[str],
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.mesh, self.batch, self.names = mesh, list(batch), list(names)
        sizes = {**mesh, **{name: size for name, size in batch if name is not None}}
        self.sizes = [sizes[name] for name in names]
        self.groups = None if groups is None else np.array(groups)
        self.size = math.prod(self.sizes) if groups is None else len(groups[0])

    def _places(self) -> list[int]:
        mesh = list(self.mesh)
        batch = [name for name, _ in self.batch]
        return [batch.index(n) if n in batch else len(batch) + mesh.index(n) for n in self.names]

    def over(self, f: Callable[[Any], Any], x: Any) -> Any:
        """``f`` on ``[..., rank, *shape]``, which may change the shape."""
        count = len(self.batch)
        x = x.reshape(*x.shape[:count], *self.mesh.values(), *x.shape[count + 1 :])
        for place, (name, size) in enumerate(self.batch):
            if name in self.names and x.shape[place] != size:
                x = np.repeat(x, size, axis=place)
        lead = count + len(self.mesh)
        places, last = self._places(), list(range(lead - len(self.names), lead))
        x = np.moveaxis(x, places, last)
        rest = x.shape[: last[0]]
        x = x.reshape(*rest, math.prod(self.sizes), *x.shape[lead:])
        if self.groups is not None:
            x = np.take(x, self.groups.reshape(-1), axis=len(rest))
            x = x.reshape(*rest, *self.groups.shape, *x.shape[len(rest) + 1 :])
        y = f(x)
        if self.groups is not None:
            y = y.reshape(*rest, self.groups.size, *y.shape[len(rest) + 2 :])
            y = np.take(y, np.argsort(self.groups.reshape(-1)), axis=len(rest))
        y = y.reshape(*rest, *self.sizes, *y.shape[len(rest) + 1 :])
        y = np.moveaxis(y, last, places)
        return y.reshape(*y.shape[:count], math.prod(self.mesh.values()), *y.shape[lead:])

    def lead(self, x: Any) -> int:
        """Where the rank's axis is in what `over` gives its function, for a value of this many axes."""
        return len(self.batch) + len(self.mesh) - len(self.names) + (self.groups is not None)

    def moved(self, f: Callable[[Any, int], Any], x: Any) -> Any:
        """A linear ``f(x, lead)`` of the values of all ranks."""
        return linear(lambda a: self.over(lambda b: f(b, self.lead(b)), a), x)

    def reduce(self, x: Any, op: str) -> Any:
        """Every rank gets ``op`` over all."""
        if op in ("sum", "mean"):

            def total(a: Any, lead: int) -> Any:
                y = np.add.reduce(a, axis=lead, keepdims=True, dtype=a.dtype)
                return np.broadcast_to(y / self.size if op == "mean" else y, a.shape)

            return self.moved(total, x)
        if op == "prod" and isinstance(x, Dual):
            y = self.root(x, 0)
            for rank in range(1, self.size):
                y = mul(y, self.root(x, rank))
            return y

        def fold(a: Any, lead: int) -> Any:
            return np.broadcast_to(UFUNCS[op].reduce(a, axis=lead, keepdims=True, dtype=a.dtype), a.shape)

        return self.moved(fold, plain(x))

    def root(self, x: Any, root: int) -> Any:
        """Every rank gets what ``root`` has."""
        return self.moved(lambda a, lead: np.repeat(np.take(a, [root], axis=lead), self.size, axis=lead), x)

    def only(self, x: Any, root: int) -> Any:
        """Zeros but at ``root``."""

        def keep(a: Any, lead: int) -> Any:
            y = np.zeros_like(a)
            at = (*[slice(None)] * lead, root)
            y[at] = a[at]
            return y

        return self.moved(keep, x)

    def gather(self, x: Any, axis: int, tiled: bool) -> Any:
        """`all_gather`."""

        def f(a: Any, lead: int) -> Any:
            y = np.moveaxis(np.repeat(np.expand_dims(a, lead), self.size, axis=lead), lead + 1, lead + 1 + axis)
            return _merged(y, lead + 1 + axis) if tiled else y

        return self.moved(f, x)

    def own(self, x: Any, axis: int, tiled: bool) -> Any:
        """Each rank keeps its part of an axis."""

        def f(a: Any, lead: int) -> Any:
            y = _divided(a, lead + 1 + axis, self.size, tiled)
            y = np.diagonal(y, axis1=lead, axis2=lead + 1 + axis)
            return np.moveaxis(y, -1, lead)

        return self.moved(f, x)

    def exchange(self, x: Any, split: int, concat: int, tiled: bool) -> Any:
        """`all_to_all`."""

        def f(a: Any, lead: int) -> Any:
            y = np.moveaxis(_divided(a, lead + 1 + split, self.size, tiled), lead + 1 + split, lead)
            y = np.moveaxis(y, lead + 1, lead + 1 + concat)
            return _merged(y, lead + 1 + concat) if tiled else y

        return self.moved(f, x)

    def permute(self, x: Any, perm: Sequence[tuple[int, int]]) -> Any:
        """Zeros where nothing comes."""

        def f(a: Any, lead: int) -> Any:
            y = np.zeros_like(a)
            for source, target in perm:
                y[(*[slice(None)] * lead, target)] = a[(*[slice(None)] * lead, source)]
            return y

        return self.moved(f, x)

    def ragged(self, x: Any, output: Any, sizes: Any, starts: Any, lands: Any) -> Any:
        """`ragged_all_to_all`: matrices by source and target."""

        def f(a: Any, b: Any) -> Any:
            shape = np.broadcast_shapes(a.shape[: len(self.batch)], b.shape[: len(self.batch)])
            a, b = (np.broadcast_to(v, (*shape, *v.shape[len(self.batch) :])) for v in (a, b))
            rows: list[Any] = []
            self.over(lambda v: (rows.append(v), v)[1], a)

            def place(c: Any) -> Any:
                c, lead = c.copy(), self.lead(c)
                every = (slice(None),) * lead
                for source in range(self.size):
                    for target in range(self.size):
                        n, start, land = (int(m[source][target]) for m in (sizes, starts, lands))
                        c[(*every, target, slice(land, land + n))] = rows[0][(*every, source, slice(start, start + n))]
                return c

            return self.over(place, b)

        return jointly(f, x, output)


def _divided(a: Any, axis: int, size: int, tiled: bool) -> Any:
    if not tiled:
        return a
    return a.reshape(*a.shape[:axis], size, a.shape[axis] // size, *a.shape[axis + 1 :])


def _merged(a: Any, axis: int) -> Any:
    return a.reshape(*a.shape[:axis], a.shape[axis] * a.shape[axis + 1], *a.shape[axis + 2 :])
