"""Prints how many of four blocks of 48 MiB malloc maps on their own, before and after a collective."""

import ctypes

import jax
from jax.sharding import PartitionSpec as P

import jaxring

BYTES = 48 << 20


class Info(ctypes.Structure):
    """mallinfo2, glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def mapped(libc):
    before = libc.mallinfo2().hblks
    blocks = [libc.malloc(BYTES) for _ in range(4)]
    found = libc.mallinfo2().hblks - before
    for block in blocks:
        libc.free(block)
    return found


jax.config.update("jax_num_cpu_devices", 2)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.mallinfo2.restype = Info
print(mapped(libc))
mesh = jax.sharding.Mesh(jax.devices(), ("x",))
reduce = jax.jit(jax.shard_map(lambda x: jaxring.all_reduce(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")))
jax.block_until_ready(reduce(jax.numpy.ones(8)))
print(mapped(libc))
