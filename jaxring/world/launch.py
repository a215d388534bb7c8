"""Initialise jax.distributed from the variables that `jaxring run` sets.

JAX itself reads JAX_COORDINATOR_ADDRESS only (checked on 0.10.2, 0.11.2 and 0.12.0.1); number and index of the
processes have to be passed in, unless a cluster manager is recognised.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def initialize(environ: Mapping[str, str] | None = None) -> bool:
    """Call jax.distributed.initialize with what the environment says; False where it has been called before.

    Raises JoinError where a variable is missing or not a number.
    """
    import jax

    if jax.distributed.is_initialized():
        return False
    environ = os.environ if environ is None else environ
    missing = [name for name in VARIABLES if not environ.get(name)]
    if missing:
        raise JoinError(f"Not set: {', '.join(missing)}. Start the job with 'jaxring run', or set them.")
    address, count, process = (environ[name] for name in VARIABLES)
    if not (count.isdecimal() and process.isdecimal() and int(process) < int(count)):
        raise JoinError(f"JAX_PROCESS_ID={process} and JAX_NUM_PROCESSES={count} are not an index below a count.")
    jax.distributed.initialize(coordinator_address=address, num_processes=int(count), process_id=int(process))
    return True


def join(command: str) -> None:
    """Joins the job that ``command`` was started in, by our variables or as JAX finds it, unless that has been done.

    Raises JoinError that says how the command is started, where there is no job.
    """
    import jax

    if jax.distributed.is_initialized():
        return
    if all(os.environ.get(name) for name in VARIABLES):
        initialize()
        return
    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise JoinError(
            f"`{command}` is started as a job is: `srun {command}`, or in each process with {', '.join(VARIABLES[:2])} "
            f"and {VARIABLES[2]} set. JAX says: {error}"
        ) from error
