"""The part of docs/settings.md that is made from the tables of settings and of retired names."""

from __future__ import annotations

from jaxring.plan.gpu import experimental
from jaxring.settings.retired import RETIRED
from jaxring.settings.variables import VARIABLES, shown

_HEAD = "| JAXRING_ | kind | default | engines | meaning |\n|---|---|---|---|---|\n"
_RETIRED = """
## Retired names

They are read in this release, and gone in the next. A process that finds one set warns and says what to set instead.
Where the setting in its place is set, too, and contradicts it, the start fails; a list or a range takes what it leaves
open from the retired name. Of NCCL's variables those marked `°` go on being read where ours is not set.

| JAXRING_ | now |
|---|---|
"""


def markdown() -> str:
    """The table of settings, and from there to the end of the page."""
    engines = {"GPU": "GPU (experimental)" if experimental.EXPERIMENTAL["cuda"] else "GPU"}
    rows = [
        f"| {v.name}{'*' if v.shared else ''}{'°' if v.nccl else ''} | {v.kind} | {shown(v.default)} | "
        f"{engines.get(v.engines, v.engines)} | {v.meaning} |\n"
        for v in VARIABLES
    ]
    gone = [f"| {old.name}{'°' if old.nccl else ''} | {old.instead} |\n" for old in RETIRED]
    return _HEAD + "".join(rows) + _RETIRED + "".join(gone)
