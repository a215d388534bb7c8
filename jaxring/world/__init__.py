"""Who takes part: rendezvous, authentication and the making of data links between the processes of a job."""

from jaxring.world.identity import ProcessInfo
from jaxring.world.join import World
from jaxring.world.native import Native
from jaxring.world.store import JaxStore, Store

__all__ = ["JaxStore", "Native", "ProcessInfo", "Store", "World"]
