"""The processes of a job: rendezvous, authentication, and the data links between them."""

from jaxring.world.identity import ProcessInfo
from jaxring.world.job_world import World
from jaxring.world.native import Native
from jaxring.world.store import JaxStore, Store

__all__ = ["JaxStore", "Native", "ProcessInfo", "Store", "World"]
