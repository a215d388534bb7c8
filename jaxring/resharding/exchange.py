"""The rounds of a reshard: an uneven all-to-all of bytes among processes, one CPU device of each, in one program.

The program depends on the processes and on how much a round holds, not on the arrays, so most trees share one. Two
rounds' memory is in use at a time: one travels while the next is packed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxring import collectives
from jaxring.errors import JaxringError
from jaxring.resharding.copies import aligned
from jaxring.tracing import checks, oracle
from jaxring.tracing.axes import called_at, resolve
from jaxring.tracing.p2p_primitives import ragged_p
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_AXIS = "process"
_BY_RANK: Any = PartitionSpec(_AXIS)  # type: ignore[no-untyped-call]
# Processes may call jaxring.reshard in different lines of different programs, and meet all the same.
SITE = "jaxring.reshard"


class Exchange:
    """Among ``devices``, one of each process in the processes' order; ``capacity`` bytes in a round."""

    def __init__(self, devices: Sequence[Any], capacity: int, timeout: float | None) -> None:
        self._devices, self._capacity, self._timeout = tuple(devices), capacity, timeout
        self._by_rank: Any = NamedSharding(Mesh(np.array(devices), (_AXIS,)), _BY_RANK)

    def agree(self, digest: int, calls: int) -> int:
        """The least of the processes' ``calls``; JaxringError names those that have called another reshard."""
        mine = np.array([[digest & 0x7FFFFFFF, digest >> 31 & 0x7FFFFFFF, min(calls, 0x7FFFFFFF)]], np.int32)
        gathered = _agreement(self._devices, self._timeout)(self._whole(mine))
        found = self._part(gathered).reshape(len(self._devices), 3)
        differ = np.any(found[:, :2] != mine[0, :2], axis=1)
        others = [d.process_index for d, other in zip(self._devices, differ, strict=True) if other]
        if others:
            raise JaxringError(
                f"jaxring.reshard: process(es) {', '.join(map(str, others))} called it with other arrays or shardings "
                f"than process {jax.process_index()}, or another round_bytes. Every process that has a part of the "
                "arrays or of the result must call it with the same tree of shapes, dtypes and shardings, in the same "
                "order, and with the same round_bytes."
            )
        return int(found[:, 2].min())

    def run(
        self, rounds: int, pack: Callable[[int, np.ndarray], np.ndarray], unpack: Callable[[int, np.ndarray], None]
    ) -> None:
        """``pack(round, memory)`` fills what is sent, and ``unpack(round, memory)`` takes what came.

        ``pack`` returns int32[4, ranks]: where each rank's bytes begin, how many they are, where those of each rank
        land, and how many these are.
        """
        program = _round(self._devices, self._capacity, self._timeout)
        memory = [aligned((1, self._capacity), np.dtype(np.uint8)) for _ in range(min(2, rounds))]
        into = [self._whole(aligned((1, self._capacity), np.dtype(np.uint8))) for _ in memory]
        under_way: Any = None
        for number in range(rounds):
            turn = number % 2
            sizes = pack(number, memory[turn][0])
            # What the round before last received has been unpacked, so its memory takes what this one receives.
            came = program(self._whole(memory[turn]), into[turn], self._whole(sizes[None]))
            if under_way is not None:
                unpack(number - 1, self._part(under_way)[0])
            into[turn], under_way = came, came
        if under_way is not None:
            unpack(rounds - 1, self._part(under_way)[0])

    def _whole(self, part: np.ndarray) -> Any:
        shape = (len(self._devices), *part.shape[1:])
        return jax.make_array_from_callback(shape, self._by_rank, lambda _: part)

    def _part(self, whole: Any) -> np.ndarray:
        return np.asarray(whole.addressable_shards[0].data)


def _mapped(devices: tuple[Any, ...], function: Any, donated: tuple[int, ...] = ()) -> Any:
    mesh = Mesh(np.array(devices), (_AXIS,))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=_BY_RANK, out_specs=_BY_RANK, check_vma=False)
    return jax.jit(mapped, donate_argnums=donated)


@functools.lru_cache(maxsize=32)
def _agreement(devices: tuple[Any, ...], timeout: float | None) -> Any:
    def gather(digest: Any) -> Any:
        with called_at(SITE):
            return collectives.all_gather(digest, _AXIS, tiled=True, timeout=timeout)

    return _mapped(devices, gather)


@functools.lru_cache(maxsize=32)
def _round(devices: tuple[Any, ...], capacity: int, timeout: float | None) -> Any:
    del capacity  # the program is traced for one

    def exchange(data: Any, into: Any, sizes: Any) -> Any:
        axes = resolve("reshard", _AXIS)
        options = checks.options("ragged_all_to_all", axes, None, "direct", None, timeout, SITE)
        begin, count, lands, comes = (jnp.reshape(row, -1) for row in sizes[0])
        oracle.leave_out(Unchecked.RESHARD, "reshard", SITE)
        operands = (data[0], into[0], begin, count, lands, comes, comes)
        return ragged_p.bind(*operands, axes=axes, options=options)[None]  # type: ignore[no-untyped-call]

    return _mapped(devices, exchange, donated=(1,))
