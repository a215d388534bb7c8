"""`jaxring topo --job`: the machine of a host as all processes of a job on it see it together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring import _compat
from jaxring.errors import JoinError
from jaxring.topology import elements, xml
from jaxring.topology.fusing import fused
from jaxring.world import identity, launch, wire
from jaxring.world.store import JaxStore

if TYPE_CHECKING:
    from jaxring.settings import Settings
    from jaxring.topology.machine import Machine
    from jaxring.world.store import Store

_PREFIX = "jaxring/machine/"


def merged(own: Machine, values: Settings) -> Machine | None:
    """The machine of this process's host as all its processes see it; None in other processes than the job's first.

    Joins the job that the environment names. Raises JoinError where there is none, or where `of_host` does.
    """
    launch.join("jaxring topo --job")
    state = _compat.distributed_state()
    assert state is not None
    host = identity.host_id(values.hostid)
    found = of_host(JaxStore(), state.process, state.processes, host, own, values.join_timeout)
    return found if state.process == 0 else None


def of_host(store: Store, process: int, count: int, host_id: str, own: Machine, timeout_s: float) -> Machine:
    """``own``, and what the other processes on the host ``host_id`` see, as one machine.

    All ``count`` processes of the job call this. Raises JoinError where one does not within ``timeout_s`` seconds each,
    or where those of this host contradict each other.
    """
    store.set(f"{_PREFIX}{process}", wire.encode({"host": host_id, "xml": xml.text(own)}))
    seen = []
    for other in range(count):
        raw = store.get(f"{_PREFIX}{other}", timeout_s)
        try:
            said = wire.decode(raw, 2 * elements.MAX_BYTES)
            if said.get("host") == host_id:
                seen.append(xml.parse(str(said.get("xml")).encode(), f"process {other}"))
        except ValueError as error:
            raise JoinError(f"What process {other} published of its machine cannot be read: {error}.") from error
    try:
        return fused(seen)
    except ValueError as error:
        raise JoinError(
            f"The processes on this host do not see one machine: {error}. Give hosts that are two an identity each "
            "(JAXRING_HOSTID)."
        ) from error
