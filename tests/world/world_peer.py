"""Plays process INDEX of COUNT over a directory store: links to all others, says how, waits for their links and data.

Arguments: DIRECTORY INDEX COUNT. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys

from jaxring.settings import settings
from jaxring.world import World
from tests.world.world_fakes import DirStore, FakeNative


def main() -> None:
    directory, index, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    native = FakeNative()
    store = DirStore(directory)
    world = World(store, index, count, native, settings().join_timeout)
    others = [p for p in range(count) if p != index]
    transports = [world.link(p, channel) for p in others for channel in (0, 1)]
    if set(transports) == {"shm"}:
        prepared = native.wait_for("shm_prepare", 2 * len(transports))
        seen = sorted(str(rings) for _, _, _, sending, rings in prepared if not sending)
    else:
        native.wait_for("tcp_finish", 2 * len(transports))
        for (_, channel, sending), sock in list(native.sockets.items()):
            if sending:
                sock.sendall(b"%d/%d;" % (index, channel))
        seen = []
        for (peer, channel, sending), sock in sorted(native.sockets.items()):
            if not sending:
                text = b"%d/%d;" % (peer, channel)
                seen.append(sock.recv(len(text), 0x100).decode())  # MSG_WAITALL
    print(json.dumps({"host_id": world.own.host_id, "transports": transports, "seen": seen}), flush=True)
    # Stay until all are done: a link that is still being made needs this process.
    store.set(f"done/{index}", b"1")
    for p in others:
        store.get(f"done/{p}", 60)
    world.close()


main()
