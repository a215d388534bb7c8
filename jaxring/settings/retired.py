"""Names of settings that go with the next release. What they say is translated into the setting in their place.

NCCL's variables of these names stay: they are read, and translated, in the absence of ours.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxring.settings import kinds
from jaxring.settings.row import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True)
class Retired:
    """A name, and the ``setting`` in its place. ``instead`` is what the page says of it.

    ``parse`` reads the name's value, ``becomes`` makes it that setting's text, "" where the setting's default says the
    same. Without a setting the name has no effect. ``nccl``: NCCL_<name> is read too.
    """

    name: str
    instead: str
    parse: Callable[[str], Any] = str
    setting: str = ""
    becomes: Callable[[Any], str] = str
    nccl: bool = False


RETIRED: tuple[Retired, ...] = (
    # Where several of one setting are set the first decides, unless they go together: a job that asks for encryption
    # gets it.
    Retired("TLS", "NET=TLS", kinds.flag, "NET", lambda on: "TLS" if on else ""),
    Retired(
        "NET_PLUGIN", "NET=plugin:NAME", kinds.plugin, "NET", lambda name: f"plugin:{name}" if name else "", nccl=True
    ),
    Retired("IB_DISABLE", "NET=Socket", kinds.flag, "NET", lambda off: "Socket" if off else "", nccl=True),
    Retired("PXN_DISABLE", "ALGO=^pxn", kinds.flag, "ALGO", lambda off: "^pxn" if off else "", nccl=True),
    Retired(
        "NVLS_ENABLE",
        "0: ALGO=^nvls; 1: ALGO=+nvls",
        kinds.integer(0, 2),
        "ALGO",
        ("^nvls", "+nvls", "").__getitem__,
        nccl=True,
    ),
    Retired("MIN_NCHANNELS", "NCHANNELS=2-, for 2", kinds.integer(1, 64), "NCHANNELS", "{}-".format, nccl=True),
    Retired("MAX_NCHANNELS", "NCHANNELS=-8, for 8", kinds.integer(1, 64), "NCHANNELS", "-{}".format, nccl=True),
    Retired("P2P_DISABLE", "P2P=none", kinds.flag, "P2P", lambda off: "none" if off else "", nccl=True),
    Retired("LOCAL_REGISTER", "0: P2P=staged", kinds.flag, "P2P", lambda on: "" if on else "staged"),
    Retired("TOPO_DUMP_FILE", "no effect: `jaxring topo --xml > FILE` writes the topology"),
    Retired("HUGE_PAGES", "no effect: /sys/kernel/mm/transparent_hugepage/enabled says what programs get"),
    Retired("KEEP_BYTES", "no effect: MALLOC_MMAP_THRESHOLD_=BYTES, of glibc, says which freed blocks malloc keeps"),
    Retired("NTHREADS", "no effect: a lane has as many threads as its kernel is compiled for"),
)


def warnings(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each retired name of ours that is set: what to set instead."""
    found = []
    for old in RETIRED:
        text = environ.get(PREFIX + old.name, "").strip()
        if not text:
            continue
        try:
            becomes = old.becomes(old.parse(text))
        except ValueError:
            continue  # `examine` says what is wrong with it
        mend = f"set {PREFIX}{old.setting}={becomes} instead" if becomes else "unset it, it says what is the default"
        found.append(f"{PREFIX}{old.name} goes with the next release: {mend if old.setting else old.instead}.")
    return found
