"""The table of JAXRING_* variables, put together from `jaxring.settings.rows`.

The names are NCCL's where NCCL has such a variable, and so are the meanings.
"""

from __future__ import annotations

import dataclasses

from jaxring.settings.row import PREFIX, Variable, rows
from jaxring.settings.rows.diagnosis import Diagnosis
from jaxring.settings.rows.gpu import Gpu
from jaxring.settings.rows.job import Job
from jaxring.settings.rows.network import Network
from jaxring.settings.rows.rdma import Rdma
from jaxring.settings.rows.tuning import Tuning

__all__ = ["PREFIX", "VARIABLES", "Settings", "Variable", "shown"]

_GROUPS = (Job, Network, Rdma, Tuning, Gpu, Diagnosis)
VARIABLES: tuple[Variable, ...] = tuple(variable for group in _GROUPS for variable in rows(group))


@dataclasses.dataclass(frozen=True)
class Settings(Job, Network, Rdma, Tuning, Gpu, Diagnosis):
    """The parsed values. Fields are the variables' names in lower case; times are seconds, sizes are bytes."""

    def fingerprint(self) -> str:
        """The settings that all processes of a job must share, as text. Differences can be read from it."""
        return " ".join(f"{v.name}={shown(getattr(self, v.name.lower()))}" for v in VARIABLES if v.shared)


def shown(value: object) -> str:
    """A value in the form in which it is set in the environment."""
    if isinstance(value, tuple):
        return ",".join(value)
    if value == -1:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, bool) else str(value)
