"""`jaxring simulate --step`: a training step from a list in JSON, or from a flight record."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from jaxring.cli import tables
from jaxring.errors import JaxringError
from jaxring.plan.collectives import COLLECTIVES
from jaxring.settings.sizes import shown
from jaxring.simulate import training
from jaxring.trace import flight

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from jaxring.simulate.run import Run


def run(path: pathlib.Path, simulated: Callable[[training.Collective], Run], as_json: bool) -> int:
    """Play the step in ``path`` and print it. Raises JaxringError for a file that holds none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JaxringError(f"{path} cannot be read: {error.strerror}.") from None
    entries = _recorded(data, path) if data.startswith(flight.MAGIC) else training.read(data.decode())
    found = training.play(entries, simulated)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
        return 0
    print(
        f"The step takes {found.step:,.1f} us: {found.compute:,.1f} us of computation, and "
        f"{found.communication:,.1f} us of communication, of which {found.exposed:,.1f} us are exposed."
    )
    rows = []
    for entry, (begin, end) in zip(entries, found.spans, strict=True):
        what = f"{entry.collective}, {shown(entry.nbytes)}" if isinstance(entry, training.Collective) else "computation"
        rows.append((f"{begin:,.1f}", f"{end - begin:,.1f}", what))
    tables.console().print(tables.table("Entries", ("from us", "us", "what"), rows))
    return 0


def _recorded(data: bytes, path: pathlib.Path) -> list[training.Compute | training.Collective]:
    """The collectives that ended well in a flight record, and the computation between them."""
    # Only here, because it imports jax, without which the command starts several times as fast.
    from jaxring.profiler.spans import plan

    records = []
    for record in flight.parse(data).records:
        label = plan(record.label)
        collective, nbytes = label.get("collective"), label.get("nbytes")
        if record.state == "done" and collective in COLLECTIVES and isinstance(nbytes, int) and nbytes > 0:
            records.append((record.launched / 1000, record.ended / 1000, str(collective), nbytes))
    if not records:
        raise JaxringError(f"{path} records no collective that has ended well.")
    return training.from_records(records)
