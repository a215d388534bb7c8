"""Prints how many of four blocks of 24 MiB glibc maps on their own, before and after a collective.

None is freed: glibc keeps blocks of a size that it has seen freed, by itself.
"""

import ctypes

import jax
from jax.sharding import PartitionSpec as P

import jaxring

BYTES = 24 << 20
# In the word before a block, beside its size: IS_MMAPPED of glibc's malloc.
MAPPED = 2


def mapped(libc):
    blocks = [libc.malloc(BYTES) for _ in range(4)]
    words = [ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value for block in blocks]
    return sum(word & MAPPED != 0 for word in words)


jax.config.update("jax_num_cpu_devices", 2)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
print(mapped(libc))
mesh = jax.sharding.Mesh(jax.devices(), ("x",))
reduce = jax.jit(jax.shard_map(lambda x: jaxring.all_reduce(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")))
jax.block_until_ready(reduce(jax.numpy.ones(8)))
print(mapped(libc))
