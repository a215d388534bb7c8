"""Fits the prices of a profile to measured times: least squares of relative errors, and no price below zero."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from jaxring.plan.profile import LINKS, Link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxring.bench.tuning.cell import Cell, Layout
    from jaxring.bench.tuning.measure import Times
    from jaxring.plan.profile import Profile

# The prices that are fitted: of each class of connections, and of a switch between processes.
_PRICES = [(name, field.name) for name in LINKS for field in dataclasses.fields(Link)] + [("constants", "switch")]


def fitted(base: Profile, measured: Iterable[tuple[Layout, Times, int]]) -> Profile:
    """``base`` with prices by which the measured candidates cost what they took.

    A price that no measurement depends on stays as it was. ``measured``: each layout, its times, and the processors
    that its processes share.
    """
    units = [_only(base, *price) for price in _PRICES]
    rows, times = [], []
    for layout, cells, processors in measured:
        for cell, found in cells.items():
            columns = [_predicted(cell, layout, processors, unit) for unit in units]
            for (algorithm, protocol), us in zip(cell.candidates, found, strict=True):
                name = f"{algorithm}/{protocol}"
                rows.append([column[name] / us for column in columns])
                times.append(1.0)
    if not rows:
        return base
    matrix = np.array(rows)
    used = np.flatnonzero(matrix.any(axis=0))
    # Scales the columns to one magnitude, for the solver: us a byte are a millionth of us a message.
    scale = np.linalg.norm(matrix[:, used], axis=0)
    from scipy.optimize import nnls

    solution, _ = nnls(matrix[:, used] / scale, np.array(times))
    prices = dict(zip((_PRICES[i] for i in used), solution / scale, strict=True))
    for (record, field), value in prices.items():
        changed = dataclasses.replace(getattr(base, record), **{field: float(f"{value:.4g}")})
        base = dataclasses.replace(base, **{record: changed})
    return base


def _only(base: Profile, record: str, field: str) -> Profile:
    """A profile in which this price is 1 and all others are 0, by which a candidate costs what depends on it."""
    none = Link(0.0, 0.0, 0.0)
    constants = dataclasses.replace(base.constants, switch=0.0)
    empty = dataclasses.replace(base, memory=none, shm=none, tcp=none, rdma=none, constants=constants, measured=())
    return dataclasses.replace(empty, **{record: dataclasses.replace(getattr(empty, record), **{field: 1.0})})


def _predicted(cell: Cell, layout: Layout, processors: int, profile: Profile) -> dict[str, float]:
    choice = layout.choose(cell.collective, cell.nbytes, processors, profile, cell.own)
    return {name: sum(dataclasses.astuple(detail.predicted)) for name, detail in choice.details.items()}
