"""The machine of a host as several processes of a job on it see it: each publishes its own view in the job's store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.topology import elements, xml
from jaxring.topology.fusing import fused
from jaxring.world import wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxring.topology.machine import Machine
    from jaxring.world.store import Store

_PREFIX = "jaxring/machine/"


def publish(store: Store, process: int, host_id: str, own: Machine) -> None:
    """Says what this process sees of its host. A process can say it once."""
    store.set(f"{_PREFIX}{process}", wire.encode({"host": host_id, "xml": xml.text(own)}))


def of_host(store: Store, processes: Iterable[int], host_id: str, timeout_s: float) -> Machine:
    """What those of the processes see that are on the host ``host_id``, as one machine.

    Raises JoinError where one has not published its view within ``timeout_s`` seconds, or where views contradict each
    other.
    """
    seen = []
    for other in processes:
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
