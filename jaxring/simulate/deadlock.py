"""Says why a run cannot go on: which rank waits for which, until the chain is a cycle or ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jaxring.plan.schedule import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.simulate.model import Model
    from jaxring.simulate.program import Program


class Deadlock(ScheduleError):  # noqa: N818 (as ScheduleError says it)
    """Lanes wait for each other, or for what never comes. ``cycle``: the (rank, lane, step) that wait in a circle, each
    for the next one; empty where the chain of waits has an end."""

    def __init__(self, message: str, cycle: tuple[tuple[int, int, int], ...] = ()) -> None:
        super().__init__(message)
        self.cycle = cycle


class State(Protocol):
    """What a run that has stopped knows of its lanes and connections, by their numbers."""

    program: Program
    model: Model
    rank: list[int]
    at: list[int]
    finished: list[bool]
    arrived: list[int]
    sent: list[int]
    dead: dict[int, float]


def describe(player: State, stuck: Sequence[int], now: float) -> Deadlock:
    """The error for lanes that are left over when nothing happens any more."""
    lanes, connections = player.program.lanes, player.program.connections
    receiver = {connection: lane for lane, each in enumerate(lanes) for op in each.ops for connection in op.recv}
    sender = {connection: lane for lane, each in enumerate(lanes) for op in each.ops for connection in op.send}

    def wait(lane: int) -> tuple[str, int]:
        """What the lane waits for, and the lane that could help it, or -1."""
        op = lanes[lane].ops[player.at[lane]]
        if player.dead.get(player.rank[lane], float("inf")) <= now:
            return "has died", -1
        for connection in op.recv:
            if not player.arrived[connection]:
                source = connections[connection][0]
                return f"waits for a message from rank {source}", sender.get(connection, -1)
        for connection in op.send:
            if player.sent[connection] >= player.model.slots:
                target = connections[connection][1]
                return f"waits for a slot on the way to rank {target}", receiver.get(connection, -1)
        return "waits for data over a link that is down", -1

    def named(lane: int) -> str:
        return f"rank {lanes[lane].rank}, lane {lanes[lane].number}, step {lanes[lane].numbers[player.at[lane]]}"

    chain: list[int] = []
    lane = stuck[0]
    said: list[str] = []
    while lane >= 0 and lane not in chain:
        chain.append(lane)
        if player.finished[lane]:
            said.append(f"rank {lanes[lane].rank}, lane {lanes[lane].number} has ended")
            break
        what, onward = wait(lane)
        said.append(f"{named(lane)} {what}")
        lane = onward
    spec = player.program.schedule.spec
    begin = f"{spec.algorithm} {spec.collective} of {spec.nranks} ranks stops after {now:g} us: "
    if lane >= 0 and lane in chain and not player.finished[lane]:
        first = chain.index(lane)
        cycle = tuple((lanes[i].rank, lanes[i].number, lanes[i].numbers[player.at[i]]) for i in chain[first:])
        return Deadlock(f"{begin}a deadlock: {'; '.join(said[first:])}, which closes the cycle", cycle)
    return Deadlock(f"{begin}{'; '.join(said)}")
