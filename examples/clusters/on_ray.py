"""Runs a function as a job of JAX in Ray's actors, one for each bundle of a placement group, as ray.train does.

    python examples/clusters/on_ray.py --processes 4

On a cluster of Ray's: `ray job submit -- python examples/clusters/on_ray.py --processes 4 --cpus 8`, or, for GPUs,
`--gpus 1`. Ray places the processes and gives each the GPUs that it may use; process 0's host holds JAX's coordination
service, at an address that the others learn through Ray.
"""

from __future__ import annotations

import argparse
import os
import socket
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

if TYPE_CHECKING:
    from collections.abc import Callable

# A process that has not begun by then never will: the cluster has no room for it.
PLACE_S = 60


@ray.remote
class Process:
    """One process of the job."""

    def address(self) -> str:
        """An address of this host for JAX's coordinator, with a port that was free."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def run(self, address: str, count: int, index: int, function: Callable[[], Any]) -> Any:
        """Joins the job, then calls the function."""
        import jax

        jax.distributed.initialize(address, count, index)
        try:
            return function()
        finally:
            jax.distributed.shutdown()


def run(function: Callable[[], Any], processes: int, cpus: int = 1, gpus: int = 0) -> list[Any]:
    """What ``function`` returns in each process, in their order. All have ended when this returns or raises.

    The first exception of any of them is raised here, with its traceback, and ends the others.
    """
    resources = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    group = placement_group([resources] * processes, strategy="PACK")
    actors: list[Any] = []
    try:
        if not group.wait(PLACE_S):
            raise RuntimeError(f"Ray has no room for {processes} processes with {resources} each: see `ray status`")
        for bundle in range(processes):
            where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, bundle)
            actors.append(Process.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=where).remote())
        address = ray.get(actors[0].address.remote())
        running = [actor.run.remote(address, processes, index, function) for index, actor in enumerate(actors)]
        waiting = running
        while waiting:  # the first to fail raises here, though others wait for it
            done, waiting = ray.wait(waiting)
            ray.get(done)
        return ray.get(running)
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def check() -> str:
    """The job: the sum of all processes' numbers, by a Communicator."""
    import jax
    import numpy as np

    import jaxring

    count = jax.process_count()
    total = jaxring.Communicator().all_reduce(np.full(4, jax.process_index() + 1.0, np.float32))
    assert (total == count * (count + 1) / 2).all(), total
    return f"process {jax.process_index()} of {count}: the sum is that of NumPy, {total[0]:g}"


def main() -> None:
    """Prints what each process says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of each process")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each process")
    arguments = parser.parse_args()
    ray.init(runtime_env={"env_vars": {"PJRT_NPROC": os.environ.get("PJRT_NPROC", "16")}})
    try:
        print("\n".join(run(check, arguments.processes, arguments.cpus, arguments.gpus)))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
