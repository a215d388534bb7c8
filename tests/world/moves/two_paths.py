"""Two linked Worlds of hosts with two addresses, whose connections have a name."""

from __future__ import annotations

HOME, OTHER = "127.0.0.1", "127.0.0.2"


def linked(make_world, **settings):
    """Two worlds, the first with a link on channel 0 to the second; its name and that of its control connection."""
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1", **settings) for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("path", 2)
    control, data = (name for _, name in native0.named("path"))
    return native0, native1, data, control


def away(make_world):
    """A World whose control connection and link are at the other address of their peer; both; and its engine."""
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("path", 2)
    connections = list(zero._failover._connections.values())
    for each in connections:
        each.return_at = float("inf")  # they go back where a test says so
        each.now = OTHER
    return zero, connections, native0
