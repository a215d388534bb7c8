"""Execution plans of MSCCL++ for tests, in few words."""

from __future__ import annotations

import itertools
import json
from typing import Any

_numbers = itertools.count()
# Of each rank, one channel and one remote buffer of each kind to each other rank, in the order of ranks.
KINDS = ("i", "o", "s")


def own(buffer: str, index: int, size: int = 1) -> dict[str, Any]:
    """Chunks of a rank's own buffer."""
    return {"type": buffer, "index": index, "size": size}


class Plan:
    """All thread blocks of a rank know the channels and buffers of all others."""

    def __init__(self, collective: str, ranks: int, chunks: tuple[int, int], inplace: bool = False) -> None:
        self.ranks, self.name = ranks, f"mscclpp_test_{next(_numbers)}"
        self.collective, self.chunks, self.inplace = collective, chunks, inplace
        self.blocks: dict[int, list[list[dict[str, Any]]]] = {rank: [] for rank in range(ranks)}
        self.semaphores: list[int] = []

    def peers(self, rank: int) -> list[int]:
        return [each for each in range(self.ranks) if each != rank]

    def far(self, rank: int, peer: int, buffer: str, index: int, size: int = 1) -> dict[str, Any]:
        """Chunks of another rank's buffer, as ``rank`` names them."""
        number = self.peers(rank).index(peer) * len(KINDS) + KINDS.index(buffer)
        return {"buffer_id": number, "index": index, "size": size}

    def sync(self, name: str, rank: int, *peers: int) -> dict[str, Any]:
        return {"name": name, "channel_type": "memory", "channel_ids": [self.peers(rank).index(p) for p in peers]}

    @staticmethod
    def data(name: str, src: list[dict[str, Any]], dst: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {"name": name, "src_buff": src, "dst_buff": dst, "channel_type": "memory", **more}

    def text(self) -> str:
        gpus = []
        for rank in range(self.ranks):
            peers = self.peers(rank)
            everything = {
                "channels": [
                    {"channel_type": "memory", "channel_ids": list(range(len(peers)))},
                    {"channel_type": "switch", "channel_ids": [0]},
                ],
                "remote_buffer_refs": [
                    {"access_channel_type": "memory", "remote_buffer_ids": list(range(len(peers) * len(KINDS)))}
                ],
            }
            gpus.append(
                {
                    "id": rank,
                    "input_chunks": self.chunks[0],
                    "output_chunks": self.chunks[1],
                    "scratch_chunks": 64,
                    "channels": [
                        {"channel_type": "memory", "connected_to": peers},
                        {
                            "channel_type": "switch",
                            "buffer_type": "i",
                            "rank_groups": [{"size": 1, "ranks": list(range(self.ranks))}],
                        },
                    ],
                    "remote_buffers": [
                        {"rank": peer, "type": kind, "access_channel_types": ["memory"]}
                        for peer in peers
                        for kind in KINDS
                    ],
                    "semaphores": [{"init_value": value} for value in self.semaphores],
                    "threadblocks": [
                        {"id": number, "ops": ops, **everything} for number, ops in enumerate(self.blocks[rank])
                    ],
                }
            )
        plan = {"name": self.name, "collective": self.collective, "protocol": "Simple", "inplace": self.inplace}
        return json.dumps(plan | {"gpus": gpus})


def reduce_scatter_by_scratch(ranks: int) -> Plan:
    """Each rank puts its operands into the scratch of their owners, and the owner adds them up when all are there."""
    plan = Plan("reducescatter", ranks, (ranks, 1))
    for rank in range(ranks):
        peers = plan.peers(rank)
        ops = [plan.data("put", [own("i", peer)], [plan.far(rank, peer, "s", rank)]) for peer in peers]
        ops += [plan.sync("signal", rank, *peers), plan.sync("wait", rank, *peers), {"name": "nop"}]
        ops.append(plan.data("re", [own("i", rank), *(own("s", peer) for peer in peers)], [own("o", 0)]))
        plan.blocks[rank] = [ops]
    return plan


def all_reduce_by_packets(ranks: int, chunks: int) -> Plan:
    """In place: each rank gets a part of all operands by packets, adds them up, and sends the sum on by packets."""
    plan = Plan("allreduce", ranks, (ranks * chunks, ranks * chunks), inplace=True)
    for rank in range(ranks):
        peers = plan.peers(rank)
        first = [
            plan.data("ppkt", [own("i", peer * chunks, chunks)], [plan.far(rank, peer, "s", rank * chunks, chunks)])
            for peer in peers
        ]
        added = [own("i", rank * chunks, chunks), *(own("s", peer * chunks, chunks) for peer in peers)]
        sent = [plan.far(rank, peer, "s", (ranks + rank) * chunks, chunks) for peer in peers]
        first.append(plan.data("respkt", added, [own("i", rank * chunks, chunks), *sent]))
        second = [
            plan.data("upkt", [own("s", (ranks + peer) * chunks, chunks)], [own("i", peer * chunks, chunks)])
            for peer in peers
        ]
        plan.blocks[rank] = [first, second]
    return plan
