"""`jaxring topo --job`: the machine of a host as all processes of a job on it see it together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring import _compat
from jaxring.runtime import machines
from jaxring.world import identity, launch
from jaxring.world.store import JaxStore

if TYPE_CHECKING:
    from jaxring.settings import Settings
    from jaxring.topology.machine import Machine


def merged(own: Machine, values: Settings) -> Machine | None:
    """The machine of this process's host as all its processes see it; None in other processes than the job's first.

    Joins the job that the environment names. Raises JoinError where there is none, or where `machines.of_host` does.
    """
    launch.join("jaxring topo --job")
    state = _compat.distributed_state()
    assert state is not None
    store, host = JaxStore(), identity.host_id(values.hostid)
    machines.publish(store, state.process, host, own)
    found = machines.of_host(store, range(state.processes), host, values.join_timeout)
    return found if state.process == 0 else None
