"""Reads a flight record, which ffi/engine/records/recorder.cc writes: a header with samples and clocks, a ring of
slots, a ring of texts.

The file may come from a process that died while it wrote, or from anywhere else: every number is checked before it is
used as an offset or a length.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

from jaxring._stragglers import Sample
from jaxring.errors import JaxringError

if TYPE_CHECKING:
    import pathlib

MAGIC = b"JRTRACE3"
STATES = ("running", "done", "failed")
_HEADER = struct.Struct("<8s4I q2q q2Q 64s q 64s Q")
_SAMPLE, _SAMPLES = struct.Struct("<8q"), 256
_CLOCK, _CLOCKS = struct.Struct("<3q"), 256
HEADER_BYTES = 6 * 4096
_SLOT = struct.Struct("<4Q3q2I")
_MAX_BYTES = 64 << 20
_MAX_PROCESSES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Record:
    """One operation. Times are ns since 1970 by its host's clock; ``ended`` is 0 while it runs.

    ``key`` is the same in all processes that take part. ``what`` names the call, ``label`` is the plan's JSON ("" where
    newer ones have taken the room of either).
    """

    number: int
    sequence: int
    key: int
    what: str
    label: str
    arrived: int
    launched: int
    ended: int
    state: str

    def __str__(self) -> str:
        return f"{self.what or 'an operation'}, execution {self.sequence}"


@dataclasses.dataclass(frozen=True)
class Flight:
    """A process's record: the last operations, oldest first.

    ``process`` is its index in the job, -1 where it is in none yet and has begun no operation. ``processes`` is how
    many the job has and ``job`` its name, the address of its coordinator: 0 and "" without jax.distributed.
    """

    host: str
    pid: int
    process: int
    records: tuple[Record, ...]
    processes: int = 0
    job: str = ""
    # What it has spent, the oldest sample first.
    samples: tuple[Sample, ...] = ()
    # By process: its monotonic clock less this one's and how wrong that may be, in ns.
    clocks: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    # What was added to moments of the monotonic clock.
    shift: int = 0

    def name(self) -> str:
        """Short, and as good as unique in a job."""
        return f"process {self.process}" if self.process >= 0 else f"pid {self.pid}"

    def __str__(self) -> str:
        name = self.name() if self.process >= 0 else "a process"
        return f"{name} (pid {self.pid} on {self.host})"


def read(path: pathlib.Path) -> Flight:
    """The record in that file. Raises JaxringError where it is none."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise JaxringError(f"Cannot read {path}: {error.strerror}.") from error
    try:
        return parse(data)
    except ValueError as error:
        raise JaxringError(f"{path} is no flight record of this version of jaxring: {error}.") from None


def parse(data: bytes) -> Flight:
    """The record in these bytes. Raises ValueError."""
    if len(data) > _MAX_BYTES or len(data) < _HEADER.size or not data.startswith(MAGIC):
        raise ValueError("it does not begin as one, or is too long")
    _, header, slot, capacity, text, pid, real, monotonic, process, last, written, host, processes, job, sampled = (
        _HEADER.unpack_from(data)
    )
    if slot != _SLOT.size or header < _HEADER.size or len(data) != header + slot * capacity + text or not text:
        raise ValueError("its parts do not fit its length")
    shift = real - monotonic
    texts = data[header + slot * capacity :]
    records = []
    for i in range(capacity):
        number, sequence, key, text_at, arrived, launched, ended, state, length = _SLOT.unpack_from(
            data, header + slot * i
        )
        # 0: never used, or half written when the process died.
        if number == 0 or number > last or state >= len(STATES):
            continue
        what, label = _texts(texts, text_at - 1, length, written)
        end = ended + shift if ended else 0
        records.append(
            Record(number, sequence, key, what, label, arrived + shift, launched + shift, end, STATES[state])
        )
    records.sort(key=lambda record: record.number)
    name, job = (_printable(text.split(b"\0")[0]) for text in (host, job))
    processes = min(max(processes, 0), _MAX_PROCESSES)
    whole = header >= HEADER_BYTES
    samples = _samples(data, sampled, shift) if whole else ()
    return Flight(name, pid, process, tuple(records), processes, job, samples, _clocks(data) if whole else {}, shift)


def _samples(data: bytes, written: int, shift: int) -> tuple[Sample, ...]:
    """The ring of samples, without one that was being written."""
    found = []
    for number in range(max(0, written - _SAMPLES), written):
        at, *spent = _SAMPLE.unpack_from(data, _HEADER.size + number % _SAMPLES * _SAMPLE.size)
        if at > 0 and min(spent[0], spent[1], spent[3], spent[4]) >= 0:
            found.append(Sample(at + shift, *spent))
    return tuple(sorted(found))


def _clocks(data: bytes) -> dict[int, tuple[int, int]]:
    begin = _HEADER.size + _SAMPLES * _SAMPLE.size
    table = (_CLOCK.unpack_from(data, begin + _CLOCK.size * i) for i in range(_CLOCKS))
    return {number - 1: (offset, error) for number, offset, error in table if number > 0 and error >= 0}


def _texts(texts: bytes, begin: int, length: int, written: int) -> tuple[str, str]:
    """What was written at that place of the endless text, if it is still there."""
    if not 0 <= begin <= written or written - begin > len(texts) or begin % len(texts) + length > len(texts):
        return "", ""
    at = begin % len(texts)
    what, _, label = texts[at : at + length].partition(b"\0")
    return _printable(what), _printable(label)


def _printable(raw: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in raw.decode("utf-8", "replace"))
