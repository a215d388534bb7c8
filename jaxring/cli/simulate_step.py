"""`jaxring simulate --step`: a training step from a list in JSON, a Chakra trace, or a flight record."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Protocol

from jaxring.cli import tables
from jaxring.errors import JaxringError
from jaxring.plan import labels
from jaxring.plan.collectives import COLLECTIVES
from jaxring.settings.sizes import shown
from jaxring.simulate import training
from jaxring.simulate.chakra import nodes
from jaxring.simulate.chakra import step as chakra
from jaxring.trace import flight

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable

    from jaxring.simulate.groups import Groups
    from jaxring.simulate.run import Run


class Simulate(Protocol):
    """Simulates a collective, among all ranks where there are no groups."""

    def __call__(
        self,
        collective: str,
        nbytes: int,
        algorithm: str = "",
        groups: Groups = (),
        perm: tuple[tuple[int, int], ...] = (),
    ) -> Run: ...


# Entries that are printed, the longest ones.
_ROWS = 40


def run(
    path: pathlib.Path,
    simulate: Simulate,
    as_json: bool,
    trace: pathlib.Path | None,
    ranks: int,
) -> int:
    """Play the step in ``path`` and print it; ``trace``: write it for so many ranks as Chakra traces of this prefix.

    Raises JaxringError for a file that holds no step, with the place in it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JaxringError(f"{path} cannot be read: {error.strerror}.") from None
    ordered = not path.name.endswith((".et", ".et.gz"))
    try:
        if not ordered:
            entries = chakra.entries(nodes.read(data))
        elif data.startswith(flight.MAGIC):
            entries = _recorded(data, path)
        else:
            entries = training.read(data.decode())
        of = range(ranks if trace is not None else 0)
        traces = [nodes.write(chakra.nodes(entries, ordered, rank)) for rank in of]
    except ValueError as error:
        raise JaxringError(f"{path}: {error}.") from None

    def simulated(entry: training.Collective | training.Message) -> Run:
        try:
            if isinstance(entry, training.Message):
                return simulate("permute", entry.nbytes, "", ((entry.source, entry.target),), ((0, 1),))
            return simulate(entry.collective, entry.nbytes, entry.algorithm, entry.groups)
        except ValueError as error:
            raise ValueError(f"{entry.name or _what(entry)}: {error}") from None

    found = training.play(entries, simulated, ordered)
    if trace is not None:
        write(trace, traces)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
        return 0
    print(
        f"The step takes {found.step:,.1f} us: {found.compute:,.1f} us of computation, and "
        f"{found.communication:,.1f} us of communication, of which {found.exposed:,.1f} us are exposed."
    )
    longest = sorted(range(len(entries)), key=lambda i: found.spans[i][0] - found.spans[i][1])[:_ROWS]
    rows = []
    for position in sorted(longest, key=lambda i: (found.spans[i], i)):
        entry, (begin, end) = entries[position], found.spans[position]
        what = f"{_what(entry)} ({entry.name})" if entry.name else _what(entry)
        rows.append((f"{begin:,.1f}", f"{end - begin:,.1f}", what))
    title = "Entries" if len(rows) == len(entries) else f"The longest {len(rows)} of {len(entries)} entries"
    tables.console().print(tables.table(title, ("from us", "us", "what"), rows))
    return 0


def _what(entry: training.Entry) -> str:
    if isinstance(entry, training.Compute):
        return "computation"
    if isinstance(entry, training.Message):
        return f"message from rank {entry.source} to rank {entry.target}, {shown(entry.nbytes)}"
    many = len(entry.groups)
    among = f" in {many} group{'s' * (many > 1)} of {len(entry.groups[0])}" if many else ""
    return f"{entry.collective}{among}, {shown(entry.nbytes)}"


def write(prefix: pathlib.Path, traces: Iterable[bytes]) -> None:
    """The Chakra traces of rank 0, of rank 1, and so on, as PREFIX.RANK.et."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for rank, data in enumerate(traces):
        prefix.with_name(f"{prefix.name}.{rank}.et").write_bytes(data)


def _recorded(data: bytes, path: pathlib.Path) -> list[training.Entry]:
    """The collectives that ended well in a flight record, and the computation between them."""
    records = []
    for record in flight.parse(data).records:
        label = labels.parse(record.label)
        collective, nbytes = label.get("collective"), label.get("nbytes")
        if record.state == "done" and collective in COLLECTIVES and isinstance(nbytes, int) and nbytes > 0:
            records.append((record.launched / 1000, record.ended / 1000, str(collective), nbytes))
    if not records:
        raise JaxringError(f"{path} records no collective that has ended well.")
    return training.from_records(records)
