"""One row of the table of settings: a field of a dataclass in `jaxring.settings.rows`, which says all about it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX = "JAXRING_"


@dataclasses.dataclass(frozen=True)
class Variable:
    """What a row says. ``name`` is the field's in upper case; ``parse`` raises ValueError with what was expected.

    ``shared``: all processes of a job must have the same value. ``nccl``: NCCL_<name> means the same and is read where
    this one is not set. ``engines``: the engines that use it.
    """

    name: str
    kind: str
    default: Any
    meaning: str
    parse: Callable[[str], object]
    shared: bool = False
    nccl: bool = False
    engines: str = "CPU, GPU"


def row(
    kind: str,
    default: Any,
    meaning: str,
    parse: Callable[[str], object],
    *,
    shared: bool = False,
    nccl: bool = False,
    engines: str = "CPU, GPU",
) -> Any:
    """A field with its row. The arguments are those of `Variable`."""
    return dataclasses.field(
        default=default, metadata={"variable": Variable("", kind, default, meaning, parse, shared, nccl, engines)}
    )


def rows(group: type[Any]) -> Iterator[Variable]:
    """The rows of a dataclass, in their order."""
    for field in dataclasses.fields(group):
        yield dataclasses.replace(field.metadata["variable"], name=field.name.upper())
