"""The argument ``epilogue`` of collectives. Its errors are raised here, while a program is traced."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxring import _compat
from jaxring.epilogues import Epilogue
from jaxring.epilogues.primitives import apply, lane_dtype
from jaxring.plan import user
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.dtypes import Family, accumulator_bytes, find
from jaxring.plan.epilogue import EpilogueSpec, with_epilogue
from jaxring.plan.schedule import Spec
from jaxring.plan.tuner import kept_by_another
from jaxring.plan.verify import verify
from jaxring.tracing import checks, oracle
from jaxring.tracing.axes import shown
from jaxring.tracing.calls import Started, is_starting
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


class Applier:
    """Applies the epilogue of one call to the leaves of its pytree, one after the other."""

    def __init__(self, what: str, epilogue: Epilogue, tree: Any, axes: Axes) -> None:
        self._what, self._epilogue, self._axes = what, epilogue, axes
        self._shape: Any = jax.tree.structure(tree)
        names = [name for each in epilogue.functions for name in (*each.operands, *each.states)]
        self._names = names
        columns = [self._leaves(name, given) for name, given in zip(names, epilogue.further, strict=True)]
        self._rows: Iterator[Sequence[Any]] = zip(*columns, strict=True) if columns else itertools.repeat(())
        self._states = sum(len(each.states) for each in epilogue.functions)

    def bind(self, x: Any, options: Options, dimension: int = 0) -> Any:
        """The result of a leaf in whole blocks; with states the tuple of it and the states.

        Within `jaxring.tracing.calls.starting` it is `Started`; not with states, since each of the results would have
        to wait for the call.
        ``dimension``: where operands and results have what is the first dimension of a block.
        """
        further = next(self._rows)
        spec = self._spec(x, further)
        if further:
            self._check_shapes(further, x.shape[1:], dimension)
        if dimension:
            further = [jnp.moveaxis(each, dimension, 0) for each in further]
        lane = lane_dtype(x.dtype)
        # (1, n): of a vector of the constants -0.0 and 1.0 XLA makes an iota, whose first value is +0.0.
        numbers = [jnp.asarray(each, lane).reshape(1) for each in self._epilogue.parameters]
        parameters = jnp.stack(numbers, axis=1) if numbers else jnp.zeros((1, 0), lane)
        if self._what == "all_reduce":
            self._check_alike(parameters)
        started = is_starting() and not self._states
        options = options._replace(epilogue=spec, started=started)
        oracle.leave_out(Unchecked.EPILOGUE, self._what, options.site)
        results = apply(self._what, x, parameters, further, self._axes, options)

        def finish(y: Any) -> Any:
            return jnp.moveaxis(y, 0, dimension) if dimension else y

        if started:
            return Started(results[0], finish)
        return tuple(map(finish, results)) if self._states else finish(results[0])

    def gather(self, tree: Any) -> Any:
        """The results of all leaves; with states the tuple of their pytree and those of the states."""
        if not self._states:
            return tree
        rows = self._shape.flatten_up_to(tree)
        columns = zip(*rows, strict=True) if rows else [()] * (1 + self._states)
        return tuple(jax.tree.unflatten(self._shape, column) for column in columns)

    def _leaves(self, name: str, given: Any) -> list[Any]:
        leaves, shape = jax.tree.flatten(given)
        if shape != self._shape:
            raise ValueError(
                f"jaxring.{self._what}: {name} of the epilogue must be a pytree like the reduced value, {self._shape}, "
                f"not {shape}."
            )
        return [checks.array(self._what, leaf) for leaf in leaves]

    def _spec(self, x: Any, further: Sequence[Any]) -> EpilogueSpec:
        """What the engine is to do. TypeError for dtypes that do not go together."""
        self._check_dtype("the reduced value", x.dtype, x.dtype)
        for name, each in zip(self._names, further, strict=True):
            self._check_dtype(f"{name} of the epilogue", each.dtype, x.dtype)
        result = further[0].dtype if further else self._epilogue.dtype or x.dtype
        self._check_dtype("the result of the epilogue", result, x.dtype)
        return EpilogueSpec(
            functions=tuple(each.name for each in self._epilogue.functions),
            result=jnp.dtype(result).name,
            further=tuple(each.dtype.name for each in further),
            states=self._states,
        )

    def _check_dtype(self, which: str, dtype: Any, data: Any) -> None:
        name = jnp.dtype(dtype).name
        try:
            known = find(name)
        except TypeError as error:
            raise TypeError(f"jaxring.{self._what}: {which}: {error}.") from None
        if known.family is not Family.FLOAT:
            raise TypeError(
                f"jaxring.{self._what}: {which} has dtype {name}, but epilogues are for floats; convert it first, or "
                "leave out epilogue= and apply the function to the result."
            )
        if known.accumulator_bytes != accumulator_bytes(data):
            raise TypeError(
                f"jaxring.{self._what}: {which} has dtype {name} and the reduced value {jnp.dtype(data).name}, and "
                "only one of them is computed in float64; convert one of them first."
            )

    def _check_shapes(self, further: Sequence[Any], block: tuple[int, ...], dimension: int) -> None:
        want = block if not dimension else (*block[1 : dimension + 1], block[0], *block[dimension + 1 :])
        for name, each in zip(self._names, further, strict=True):
            if each.shape != want:
                raise ValueError(
                    f"jaxring.{self._what}: {name} of the epilogue has shape {each.shape}, but a rank's part of the "
                    f"reduced value has {want}; pass each rank's own part of it."
                )

    def _check_alike(self, parameters: Any) -> None:
        """ValueError for parameters that differ between ranks by their type: each chunk has its owner's.

        No type says that a value is the same within each group, so with groups there is nothing to check.
        """
        if not _compat.tracks_varying() or self._axes.groups is not None:
            return
        over = [name for name in self._axes.mesh_names if name in _compat.varying(parameters)]
        if over:
            raise ValueError(
                f"jaxring.{self._what}: a parameter of the epilogue varies over {', '.join(map(repr, over))} by its "
                "type, but each rank applies the epilogue to a part of the result for all; pass the same on all ranks, "
                "such as what a jaxring.all_reduce over these axes gives."
            )


def wanted(what: str, epilogue: Any, tree: Any, axes: Axes, options: Options, compress: Any) -> Applier | None:
    """What applies a call's epilogue; None where there is none. Raises ValueError and TypeError."""
    if epilogue is None:
        return None
    if not isinstance(epilogue, Epilogue):
        raise TypeError(
            f"jaxring.{what}: epilogue must be one of jaxring.epilogues, such as jaxring.epilogues.scale(0.5), not "
            f"{shown(epilogue)}."
        )
    if compress is not None:
        raise ValueError(
            f"jaxring.{what}: epilogue cannot be combined with compress={compress!r}, which has a schedule of its own; "
            "leave out one of them."
        )
    if epilogue.further and what != "reduce_scatter":
        raise ValueError(
            f"jaxring.{what}: {epilogue.functions[-1].name} as epilogue is for jaxring.reduce_scatter, where each rank "
            "has its own part of the parameters and states; apply the step to the result here."
        )
    known = ALGORITHMS.get(options.algorithm or "")
    if known is not None and epilogue.further and not known.keeps(axes.size):
        raise ValueError(f"jaxring.{what}: {kept_by_another(known.name, what, axes.size)}.")
    if user.find(options.algorithm) is not None:
        own = user.build_user(Spec(what, axes.size, options.algorithm or ""))
        results = EpilogueSpec(functions=(), result="float32", further=("float32",) * bool(epilogue.further)).results
        verify(with_epilogue(own, results))
    return Applier(what, epilogue, tree, axes)
