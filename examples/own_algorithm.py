"""Write an all-reduce of one's own, register it, and use it by its name: recursive doubling.

    JAX_NUM_CPU_DEVICES=4 python examples/own_algorithm.py
    jaxring run -n 2 --devices-per-process 2 examples/own_algorithm.py

In round k a rank exchanges all that it has added up with the rank whose number differs in bit k, so log2(n) rounds are
enough. An algorithm is a function that gives each rank its table of steps. The verifier plays the tables of all ranks
when a call is traced: it refuses one that would not compute its collective. The sum is compared with NumPy's.
"""

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, ScheduleError, Step

INPUT, OUTPUT, SCRATCH = (Chunk(buffer, 0) for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH))


def recursive_doubling(spec, rank, rounds=None):
    """The steps of one rank, in one lane. ``rounds``: how many are made, all of them unless told."""
    if spec.nranks & (spec.nranks - 1):
        raise ValueError(f"recursive doubling wants 2, 4, 8, ... ranks, not {spec.nranks}")
    partners = [rank ^ (1 << k) for k in range(spec.nranks.bit_length() - 1)][:rounds]
    if not partners:
        return [[Step(Kind.REDUCE, INPUT, OUTPUT, recv=(Peer(rank),), flags=Flag.FINAL)]]

    # Every step ends with what goes to the next partner; the first one has no sum yet to send.
    steps = [Step(Kind.MOVE, INPUT, send=(Peer(partners[0]),))]
    for k, partner in enumerate(partners):
        flags = Flag.NONE
        if k:  # What arrives is a sum that is not complete: bfloat16, for one, travels as float32 until it is.
            flags |= Flag.RECV_PARTIAL
        if k + 1 < len(partners):
            target, send = SCRATCH, (Peer(partners[k + 1]),)
            flags |= Flag.SEND_PARTIAL
        else:
            target, send = OUTPUT, ()
            flags |= Flag.FINAL
        # Both partners add the lower rank's value first. A rank in its own list stands for what it has itself.
        order = tuple(Peer(each) for each in sorted((rank, partner)))
        steps.append(Step(Kind.REDUCE, SCRATCH if k else INPUT, target, recv=order, send=send, flags=flags))
    return [steps]


def too_short(spec, rank):
    """A mistake: the last round is missing."""
    return recursive_doubling(spec, rank, rounds=spec.nranks.bit_length() - 2)


jaxring.register_algorithm("recursive_doubling", "all_reduce", recursive_doubling, scratch_chunks=1)
jaxring.register_algorithm("too_short", "all_reduce", too_short, scratch_chunks=1)


def total(mesh, algorithm):
    def of_rank(x):
        return jaxring.all_reduce(x[0], "ranks", algorithm=algorithm)

    return jax.jit(jax.shard_map(of_rank, mesh=mesh, in_specs=P("ranks"), out_specs=P()))


def main():
    mesh = Mesh(jax.devices(), ("ranks",))
    x = np.random.default_rng(0).standard_normal((mesh.size, 100_000), np.float32)
    result = total(mesh, "recursive_doubling")(x)
    np.testing.assert_allclose(result, x.astype(np.float64).sum(axis=0), rtol=1e-5, atol=1e-5)
    assert any(plan.algorithm == "recursive_doubling" for plan in jaxring.plans()), jaxring.explain()

    try:
        total(mesh, "too_short").lower(x)
    except ScheduleError as error:
        refused = str(error)
    else:
        raise AssertionError("the verifier has passed an algorithm that does not add up all ranks")

    if jax.process_index() == 0:
        print(f"recursive doubling among {mesh.size} ranks: the sum is that of NumPy")
        print(f"without its last round it is refused: {refused}")


if __name__ == "__main__":
    main()
