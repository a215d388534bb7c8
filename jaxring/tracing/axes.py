"""Named axes: which ranks take part in a collective, in which groups. Errors of a call's axes are raised here."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import operator
import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    import types
    from collections.abc import Hashable, Iterator, Sequence

    AxisName = Hashable | Sequence[Hashable]


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes of one collective in the current trace; hashable, a parameter of the primitives.

    ``names`` in the caller's order: the rank is the row-major index over them. ``mesh`` has every mesh axis with its
    size, in the mesh's order: a partition id is the row-major index over them. ``groups`` are the caller's
    ``axis_index_groups``, or None. ``vmapped`` has those of ``names`` that are axes of `jax.vmap`, with their sizes.
    Batching removes them, so none is left when a program is lowered.
    """

    names: tuple[Hashable, ...]
    mesh: tuple[tuple[Hashable, int], ...]
    groups: tuple[tuple[int, ...], ...] | None = None
    vmapped: tuple[tuple[Hashable, int], ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of ``names``."""
        known = dict(self.mesh) | dict(self.vmapped)
        return tuple(known[name] for name in self.names)

    @property
    def size(self) -> int:
        """Ranks per group."""
        return math.prod(self.sizes) if self.groups is None else len(self.groups[0])

    @property
    def mesh_names(self) -> tuple[Hashable, ...]:
        """Those of ``names`` that are mesh axes."""
        vmapped = dict(self.vmapped)
        return tuple(name for name in self.names if name not in vmapped)

    def over(self, names: Sequence[Hashable]) -> Axes:
        """The axes ``names``, some of these, without groups."""
        return Axes(tuple(names), self.mesh, vmapped=tuple(pair for pair in self.vmapped if pair[0] in names))

    def on(self, mesh: Any) -> Axes:
        """These axes where a program is lowered, over ``mesh``. Batching is over, so all of them are the mesh's.

        In a partition function of `jax.experimental.custom_partitioning` axes are bound without their mesh, and so were
        taken for axes of `jax.vmap`.
        """
        if not self.vmapped:
            return self
        return dataclasses.replace(self, mesh=tuple(mesh.shape.items()), vmapped=())

    def partitions(self) -> np.ndarray:
        """Partition ids, one row per group, in rank order."""
        sizes = [size for _, size in self.mesh]
        order = [name for name, _ in self.mesh]
        ids = np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes)
        mine = [order.index(name) for name in self.names]
        others = [i for i in range(len(order)) if i not in mine]
        rows = ids.transpose(others + mine).reshape(-1, math.prod(sizes[i] for i in mine))
        if self.groups is not None:
            rows = np.stack([rows[:, list(group)] for group in self.groups], axis=1).reshape(-1, self.size)
        return np.ascontiguousarray(rows)

    def __str__(self) -> str:
        text = ", ".join(repr(name) for name in self.names)
        return text if len(self.names) == 1 else f"({text})"


def shown(value: Any) -> str:
    """The text of an argument in errors: an array's type, anything else's repr, shortened."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return f"an array of {value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def named(what: str, axis_name: AxisName) -> tuple[Hashable, ...]:
    """One name or several as a tuple. TypeError for a value that cannot be a name, as where arguments are swapped."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    for name in names:
        try:
            hash(name)
        except TypeError:
            raise TypeError(
                f"jaxring.{what}: the axis must be the name of one, or a tuple of names, not {shown(name)}; the value "
                "comes before the axis, as in jax.lax.psum."
            ) from None
    return names


def resolve(what: str, axis_name: AxisName, axis_index_groups: Sequence[Sequence[int]] | None = None) -> Axes:
    """The axes of a call of ``what``. NameError for an axis that is not bound, ValueError for bad groups."""
    names = named(what, axis_name)
    mesh = jax.sharding.get_abstract_mesh()
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    manual = {name: size for name, size in sizes.items() if name in mesh.manual_axes}
    vmapped = []
    for name in names:
        size = _bound_size(name) or manual.get(name)
        if size is None:
            known = ", ".join(repr(n) for n in manual) or "none"
            raise NameError(
                f"jaxring.{what}: axis {name!r} is not bound here (bound mesh axes: {known}). Call it inside "
                f"jax.shard_map or jax.pmap over a mesh axis of that name, or inside jax.vmap with that axis_name."
            )
        # A vmapped axis may have a mesh axis's name. If they also have the same size, they cannot be distinguished, and
        # need not be: either batching removes the name, or it is the mesh's.
        if manual.get(name) != size:
            vmapped.append((name, size))
    if len(set(names)) != len(names):
        raise ValueError(f"jaxring.{what}: axis_name {names} names an axis twice.")
    axes = Axes(names, tuple(sizes.items()), vmapped=tuple(vmapped))
    if axis_index_groups is None:
        return axes
    try:
        groups = tuple(tuple(operator.index(i) for i in group) for group in axis_index_groups)
    except TypeError:
        raise TypeError(
            f"jaxring.{what}: axis_index_groups must be a list of lists of indices, not {shown(axis_index_groups)}."
        ) from None
    flat = sorted(i for group in groups for i in group)
    if not groups or flat != list(range(axes.size)) or len({len(group) for group in groups}) != 1:
        raise ValueError(
            f"jaxring.{what}: axis_index_groups must hold each index 0..{axes.size - 1} of axis {axes} once, in groups "
            f"of one size; got {[list(g) for g in groups]}."
        )
    return dataclasses.replace(axes, groups=groups)


_lowered_site: contextvars.ContextVar[str | None] = contextvars.ContextVar("jaxring_lowered_site", default=None)


@contextlib.contextmanager
def called_at(site: str) -> Iterator[None]:
    """Within this context `call_site` returns ``site``, for a call that was traced earlier and is lowered now."""
    token = _lowered_site.set(site)
    try:
        yield
    finally:
        _lowered_site.reset(token)


def _bound_size(name: Hashable) -> int | None:
    """The size of the innermost axis of that name, of a mesh or of `jax.vmap`; None where there is none."""
    if isinstance(name, int):  # a dimension's number, to jax.lax
        return None
    try:
        return int(jax.lax.axis_size(name))
    except NameError:
        return None


def caller() -> tuple[str, int] | None:
    """File and line of the innermost caller outside jaxring, JAX and Optax; None for a call that was traced earlier."""
    if _lowered_site.get() is not None:
        return None
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        # Optax's chain() calls the transformations of jaxring.optax, at the same line for all of them.
        if module.split(".")[0] not in ("jaxring", "jax", "optax", "functools", "contextlib"):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def call_site() -> str:
    """``file.py:line`` of the innermost caller outside jaxring, JAX and Optax, for reports and errors."""
    lowered = _lowered_site.get()
    if lowered is not None:
        return lowered
    place = caller()
    return "?" if place is None else f"{place[0].rsplit('/', 1)[-1]}:{place[1]}"
