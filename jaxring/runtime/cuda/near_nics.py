"""Which NICs are near enough to this process's GPUs to address their memory, on the machine that the processes of the
host see together: a container may hide a switch, or a NIC that another process of the host sends by."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError
from jaxring.runtime import machines
from jaxring.topology import paths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxring.topology.machine import Machine
    from jaxring.world.store import Store

logger = logging.getLogger("jaxring.runtime")


class NearNics:
    """``native``: the engine's module, which is told. ``gpus``: its numbers of this process's GPUs. ``level``: how far
    a NIC may be, one of `paths.LEVELS`."""

    def __init__(self, native: Any, gpus: Iterable[int], level: str, own: Machine) -> None:
        self._native, self._gpus, self._level = native, sorted(gpus), level
        self._known: set[int] = set()
        self._said = ""
        self._lock = threading.Lock()
        self._tell(own)

    def meet(self, store: Store, processes: Iterable[int], host_id: str, timeout_s: float) -> None:
        """Takes in what ``processes`` of this host, which is ``host_id``, see. Connections made later use it.

        Where they contradict each other, a warning says so once, and what was known before stays in force.
        """
        with self._lock:
            known = self._known.union(processes)
            if known == self._known:
                return
            try:
                self._tell(machines.of_host(store, sorted(known), host_id, timeout_s))
            except JoinError as error:
                if str(error) != self._said:
                    logger.warning("GPUs use the NICs near them that were known before. %s", error)
                self._said = str(error)
            else:
                self._known = known

    def _tell(self, machine: Machine) -> None:
        for gpu in self._gpus:
            self._native.allow_direct(gpu, paths.nics_near(machine, self._native.device(gpu).busid, self._level))
