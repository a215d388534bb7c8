"""Warns of a forgotten `jax.distributed.initialize()`: n processes that a launcher started are then n jobs.

Launchers set the number of processes and each one's index in the environment. The children of those processes inherit
these variables, and Slurm sets them also for the script of a batch job, which is one process. Such processes get no
warning, since a wrong warning is worse than none.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pathlib
from typing import TYPE_CHECKING

from jaxring import _compat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger("jaxring.world")

_INITIALIZE = "jax.distributed.initialize()"
_BY_MPI4PY = 'jax.distributed.initialize(cluster_detection_method="mpi4py")'
# Slurm steps that are no launches: the batch script's, the interactive one's, and similar ones.
_LAST_STEP = 0xFFFFFFF0


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch: the launcher's name (``by``), this process's ``index``, the ``count`` of processes (0: not known).

    ``variable`` is an environment variable that the launcher sets; ``call`` is the call that joins its processes.
    """

    by: str
    variable: str
    index: int
    count: int
    call: str


def find(environ: Mapping[str, str]) -> Launch | None:
    """The launcher that started this process as one of several; None where none did, or it cannot be told."""
    for launch in _launches(environ):
        if launch.count > 1 or (launch.count == 0 and launch.index > 0):
            return launch
    return None


def _launches(environ: Mapping[str, str]) -> Iterator[Launch]:
    def number(name: str) -> int:
        text = environ.get(name, "")
        return int(text) if text.isdecimal() else 0

    if environ.get("OMPI_COMM_WORLD_SIZE") and environ.get("OMPI_COMM_WORLD_RANK"):
        # JAX looks for this variable, which Open MPI 5 does not set.
        call = _INITIALIZE if environ.get("OMPI_MCA_orte_hnp_uri") else _BY_MPI4PY
        count = number("OMPI_COMM_WORLD_SIZE")
        yield Launch("Open MPI", "OMPI_COMM_WORLD_SIZE", number("OMPI_COMM_WORLD_RANK"), count, call)
    if environ.get("PMI_SIZE") and environ.get("PMI_RANK"):
        yield Launch("MPI", "PMI_SIZE", number("PMI_RANK"), number("PMI_SIZE"), _BY_MPI4PY)
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")
    if step.isdecimal() and int(step) < _LAST_STEP and environ.get("SLURM_PROCID"):
        # SLURM_NTASKS may be the whole allocation's.
        size = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        yield Launch("Slurm", size, number("SLURM_PROCID"), max(1, number(size)), _INITIALIZE)
    elif environ.get("PMIX_RANK"):
        yield Launch("PMIx", "PMIX_RANK", number("PMIX_RANK"), 0, _BY_MPI4PY)
    if environ.get("JOB_COMPLETION_INDEX"):
        call = f"{_INITIALIZE} (with the Python package kubernetes, or with address, number and index)"
        yield Launch("Kubernetes", "JOB_COMPLETION_INDEX", number("JOB_COMPLETION_INDEX"), 0, call)
    if environ.get("WORLD_SIZE") and environ.get("RANK"):
        call = 'jax.distributed.initialize(address, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))'
        yield Launch("a launcher", "WORLD_SIZE", number("RANK"), number("WORLD_SIZE"), call)


def inherited(launch: Launch, pid: int, proc: pathlib.Path = pathlib.Path("/proc")) -> bool:
    """Whether process ``pid`` has the launcher's variables from a Python program that the launcher started.

    Shells between the launcher and the program are common and do not count.
    """
    entry = f"{launch.variable}={launch.count or launch.index}".encode()
    while (pid := _parent(proc / str(pid))) > 1:
        try:
            variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
            program = (proc / str(pid) / "exe").readlink().name
        except OSError:  # another user's, or gone
            return False
        if entry not in variables:  # the launcher, or what started it
            return False
        if program.startswith("python"):
            return True
    return False


def _parent(folder: pathlib.Path) -> int:
    try:
        status = (folder / "stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])


@functools.cache
def warn_if_alone() -> None:
    """Warn, once, where a launcher started several processes and jax.distributed does not know of it.

    Called when a collective is lowered or a Communicator is made. A job of one process that was initialised as such is
    left alone.
    """
    if _compat.distributed_state() is not None:
        return
    launch = find(os.environ)
    if launch is None or inherited(launch, os.getpid()):
        return
    of = f" of {launch.count}" if launch.count else ""
    told = f"{launch.variable}={os.environ[launch.variable]}"
    logger.warning(
        "This is process %d%s that %s started (%s), but jax.distributed is not initialised: JAX knows of one process, "
        "so each of them is a job of its own, and collectives do not reach the others. Call %s before anything else of "
        "JAX. Where separate jobs are meant, unset %s.",
        launch.index,
        of,
        launch.by,
        told,
        launch.call,
        launch.variable,
    )
