"""A random program evaluated by NumPy in float64, and how far a right result may be off.

Floats are computed in float64 whatever their dtype, without rounding; integers as they are. How much rounding does to a
program is found by evaluating it again with noise of each dtype's precision in every operation: what that changes, with
a margin, is the tolerance. What no rounding touches must be equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.random.rnd_dual import plain
from tests.random.rnd_numpy_derivatives import Derivatives
from tests.random.rnd_numpy_local import Value, precision, wide
from tests.random.rnd_program import is_float

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.random.rnd_program import Program, Type

_MARGIN = 24.0
_NOISY_RUNS = 2


def expected(program: Program, inputs: Sequence[Any]) -> list[tuple[np.ndarray, float]]:
    """Each output, and its tolerance."""
    with np.errstate(all="ignore"):
        clean = Evaluation(program, None).run(inputs)
        noisy = [Evaluation(program, np.random.default_rng(i)).run(inputs) for i in range(_NOISY_RUNS)]
    found = []
    for i, (value, dtype) in enumerate(clean):
        if not is_float(dtype):
            found.append((value.astype(dtype), 0.0))
            continue
        with np.errstate(all="ignore"):
            off = max((float(np.nanmax(np.abs(other[i][0] - value), initial=0.0)) for other in noisy), default=0.0)
            large = float(np.max(np.abs(np.nan_to_num(value, posinf=0, neginf=0)), initial=0.0))
        found.append((value, _MARGIN * off + (4 * precision(dtype)[0] * large if off else 0.0)))
    return found


class Evaluation(Derivatives):
    """One evaluation, with noise from ``noise``."""

    def run(self, inputs: Sequence[Any]) -> list[tuple[np.ndarray, str]]:
        """The outputs as the mapped function gives them, and their dtypes."""
        program = self.program
        values = [self._stacked(x, each) for x, each in zip(inputs, program.inputs, strict=True)]
        types = [(each.vary, each.dtype) for each in program.inputs]
        if program.outer == "vmap":
            self.batch = [(None, len(inputs[0]))]
            return [self._global(v, t) for v, t in zip(self.block(program.body, values), program.outputs, strict=True)]
        if program.outer in ("", "remat"):
            results = self.block(program.body, values)
        elif program.outer == "jvp":
            results = self.jvp(program.body, values)
        else:
            count = len(program.body.results)
            results = self.vjp(program.body, values, [v for v, _ in types], [t.vary for t in program.outputs[:count]])
        return [self._global(v, t) for v, t in zip(results, program.outputs, strict=True)]

    def _stacked(self, x: Any, of: Type) -> Value:
        """An input ``[batch..., shards, *shape]`` on every device."""
        x = np.asarray(x)
        lead = x.ndim - len(of.shape) - 1
        sizes = [size if name in of.vary else 1 for name, size in self.mesh.items()]
        x = x.reshape(*x.shape[:lead], *sizes, *of.shape)
        x = np.broadcast_to(x, (*x.shape[:lead], *self.mesh.values(), *of.shape))
        return Value(x.reshape(*x.shape[:lead], self.devices, *of.shape).astype(wide(of.dtype)), of.dtype)

    def _global(self, value: Value, of: Type) -> tuple[np.ndarray, str]:
        x, lead = plain(value.data), len(self.batch)
        for place, (_, size) in enumerate(self.batch):
            if x.shape[place] != size:
                x = np.repeat(x, size, axis=place)
        x = x.reshape(*x.shape[:lead], *self.mesh.values(), *x.shape[lead + 1 :])
        at = [slice(None) if name in of.vary else slice(0, 1) for name in self.mesh]
        x = x[(*[slice(None)] * lead, *at)]
        shards = math.prod(x.shape[lead : lead + len(self.mesh)])
        return x.reshape(*x.shape[:lead], shards, *x.shape[lead + len(self.mesh) :]), value.dtype
