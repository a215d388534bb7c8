"""The JAXRING_* environment variables: one table with type, default and meaning, read once per process.

The names are NCCL's under our prefix, and so are the meanings. A name that is not in the table is an error, because a
misspelt variable that is quietly ignored costs hours.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import math
import os
import re
from typing import TYPE_CHECKING, Any

from jaxring.errors import SettingsError
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.tuner import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "JAXRING_"
LEVELS = {"VERSION": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO, "TRACE": logging.DEBUG}
_LIST = re.compile(r"[\^=A-Za-z0-9_.:;,/@-]{0,256}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The parsed values. Fields are the variables' names in lower case; times are seconds, sizes are bytes."""

    hostid: str
    socket_ifname: str
    shm_disable: bool
    net: str
    ib_disable: bool
    ib_hca: str
    ib_gid_index: int
    ib_timeout: int
    ib_retry_cnt: int
    ib_qps_per_connection: int
    timeout: float
    join_timeout: float
    threads: int
    nsocks: int
    buffsize: int
    huge_pages: bool
    algo: tuple[str, ...]
    proto: tuple[str, ...]
    fusion_bytes: int
    p2p_disable: bool
    local_register: bool
    max_nchannels: int
    nthreads: int
    cuda_trap: bool
    debug: str

    def fingerprint(self) -> str:
        """The settings that all processes of a job must share, as text in which a difference shows itself."""
        shared = (v for v in VARIABLES if v.shared)
        return " ".join(f"{v.name}={_show(getattr(self, v.name.lower()))}" for v in shared)

    @property
    def worker_threads(self) -> int:
        """Number of engine workers: THREADS, or one per core that this process may use, at most four."""
        return self.threads or max(1, min(4, len(os.sched_getaffinity(0))))


@dataclasses.dataclass(frozen=True)
class Variable:
    """One row of the table. ``parse`` raises ValueError with what was expected."""

    name: str
    kind: str
    default: object
    meaning: str
    parse: Callable[[str], object]
    shared: bool = False


def _integer(low: int, high: int, multiple: int = 1) -> Callable[[str], int]:
    rule = f"an integer from {low} to {high}" + (f", a multiple of {multiple}" if multiple > 1 else "")

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high or int(text) % multiple:
            raise ValueError(rule)
        return int(text)

    return parse


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e6:
        raise ValueError("a number of seconds above 0 and at most 1000000")
    return value


def _list(text: str) -> str:
    if not _LIST.fullmatch(text):
        raise ValueError("a comma list of at most 256 characters")
    return text


def _choice(*names: str) -> Callable[[str], tuple[str, ...]]:
    """A list of some of the names, or with a leading ^ of the others; in the order in which they are declared."""

    def parse(text: str) -> tuple[str, ...]:
        given = {word.strip().lower() for word in text.removeprefix("^").split(",")}
        if not given <= set(names) or not (chosen := tuple(n for n in names if (n in given) != text.startswith("^"))):
            raise ValueError(f"a comma list of {', '.join(names)}, or ^ and those to leave out")
        return chosen

    return parse


def _name(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(" or ".join(names))
        return text.lower()

    return parse


def _text(text: str) -> str:
    if len(text) > 256 or not text.isprintable():
        raise ValueError("at most 256 printable characters")
    return text


def _level(text: str) -> str:
    if text.upper() not in ("", *LEVELS):
        raise ValueError("one of " + ", ".join(LEVELS))
    return text.upper()


VARIABLES: tuple[Variable, ...] = (
    Variable("HOSTID", "text", "", "Identity of this host instead of the one found out.", _text),
    Variable(
        "SOCKET_IFNAME",
        "list",
        "",
        "Interfaces to listen on: comma list of name prefixes; a leading ^ excludes, a leading = makes names exact.",
        _list,
    ),
    Variable(
        "SHM_DISABLE", "flag", False, "1: no shared memory between processes, the network instead.", _flag, shared=True
    ),
    Variable(
        "NET",
        "name",
        "",
        "Transport between hosts: IB (RDMA) or Socket (TCP); empty: RDMA where both hosts have it, TCP otherwise.",
        _name("ib", "socket"),
        shared=True,
    ),
    Variable("IB_DISABLE", "flag", False, "1: no RDMA, TCP instead.", _flag, shared=True),
    Variable(
        "IB_HCA",
        "list",
        "",
        "RDMA devices to use: comma list of name prefixes, each may end in :port; ^ excludes, = makes names exact.",
        _list,
    ),
    Variable(
        "IB_GID_INDEX",
        "integer",
        -1,
        "Index of the GID to use; unset: InfiniBand's LID, or RoCE v2 before v1 and IPv4 before IPv6.",
        _integer(0, 65535),
    ),
    Variable(
        "IB_TIMEOUT",
        "integer",
        20,
        "How long a lost RDMA packet is waited for: 4.096 us times 2 to the power of this.",
        _integer(1, 31),
    ),
    Variable("IB_RETRY_CNT", "integer", 7, "How often an RDMA packet is sent again.", _integer(0, 7)),
    Variable(
        "IB_QPS_PER_CONNECTION",
        "integer",
        1,
        "Queue pairs per RDMA connection; messages take turns on them.",
        _integer(1, 16),
        shared=True,
    ),
    Variable("TIMEOUT", "seconds", 300.0, "Longest wait for a peer inside a collective.", _seconds),
    Variable("JOIN_TIMEOUT", "seconds", 300.0, "Longest wait for a peer to appear and to make a link.", _seconds),
    Variable("THREADS", "integer", 0, "Engine workers; 0: one per core, at most 4.", _integer(0, 256)),
    Variable("NSOCKS", "integer", 2, "Sockets per peer on the TCP transport.", _integer(1, 64), shared=True),
    Variable(
        "BUFFSIZE",
        "bytes",
        131072,
        "Bytes of one slot of the Simple protocol.",
        _integer(4096, 1 << 26, 4096),
        shared=True,
    ),
    Variable(
        "HUGE_PAGES",
        "flag",
        True,
        "0: large results in untouched memory do not ask the kernel for huge pages (madvise).",
        _flag,
    ),
    Variable(
        "ALGO",
        "list",
        (),
        "Algorithms to choose from, where they serve; a leading ^ excludes; empty: the tuner's choice.",
        _choice(*ALGORITHMS),
        shared=True,
    ),
    Variable(
        "PROTO",
        "list",
        (),
        "Protocols to choose from, where they serve; a leading ^ excludes; empty: the tuner's choice.",
        _choice(*PROTOCOLS),
        shared=True,
    ),
    Variable(
        "FUSION_BYTES",
        "bytes",
        4 << 20,
        "Neighbouring collectives of a program share a call up to so many bytes per rank; 0: each has its own.",
        _integer(0, 1 << 40),
    ),
    Variable(
        "P2P_DISABLE",
        "flag",
        False,
        "1: GPUs do not address each other's memory; their data goes over the network transports.",
        _flag,
        shared=True,
    ),
    Variable(
        "LOCAL_REGISTER",
        "flag",
        True,
        "0: XLA's buffers are not shared with GPUs of other processes but copied to and from memory of our own.",
        _flag,
    ),
    Variable(
        "MAX_NCHANNELS",
        "integer",
        16,
        "Most lanes (thread blocks) of a collective on a GPU.",
        _integer(1, 64),
        shared=True,
    ),
    Variable("NTHREADS", "integer", 0, "Threads of a lane on a GPU; 0: chosen.", _integer(0, 384, 32), shared=True),
    Variable(
        "CUDA_TRAP",
        "flag",
        True,
        "0: a failed collective does not end its GPU's context; its data may be used before the next call raises.",
        _flag,
    ),
    Variable("DEBUG", "level", "", "Log level of the logger 'jaxring': VERSION, WARN, INFO or TRACE.", _level),
)


def load(environ: Mapping[str, str]) -> Settings:
    """Parse the JAXRING_* variables of `environ`. Raises SettingsError naming the variable at fault."""
    known = {PREFIX + variable.name for variable in VARIABLES}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.0)
            raise SettingsError(f"There is no variable {name}; the nearest one is {near[0]}.")
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        text = environ.get(PREFIX + variable.name, "").strip()
        try:
            # Set but empty means unset, as shells and job files often leave it that way.
            values[variable.name.lower()] = variable.parse(text) if text else variable.default
        except ValueError as error:
            raise SettingsError(f"{PREFIX}{variable.name} must be {error}, and it is {text[:300]!r}.") from None
    return Settings(**values)


@functools.cache
def settings() -> Settings:
    """This process's settings, read from the environment at the first call; later changes have no effect."""
    return load(os.environ)


def configure_logging(values: Settings, version: str) -> None:
    """Apply DEBUG to the logger 'jaxring' and log `version` on it. Does nothing when DEBUG is not set."""
    if not values.debug:
        return
    logger = logging.getLogger("jaxring")
    logger.setLevel(LEVELS[values.debug])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
    # At the level that was asked for, so that every one of them shows it, as NCCL does.
    logger.log(logger.level, "jaxring %s", version)


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)
