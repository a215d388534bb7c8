"""Flight records made by hand, in the layout of ffi/engine/records/recorder.cc."""

from __future__ import annotations

import struct

HEADER_BYTES, CAPACITY, TEXT_BYTES = 6 * 4096, 4, 512
STATES = {"running": 0, "done": 1, "failed": 2}


def record(number, key, sequence, what, state="done", launched=100, ended=200, processes=2):
    return (number, key, sequence, what, state, launched, ended, processes)


def flight(process, records, pid=7, host=b"h", last=None, processes=0, job=b""):
    """The bytes of a process's record. Times are in seconds."""
    texts, slots = bytearray(), bytearray(64 * CAPACITY)
    for number, key, sequence, what, state, launched, ended, taking_part in records:
        text = what.encode() + b'\0{"processes":%d}' % taking_part
        times = (launched * 10**9, launched * 10**9, ended * 10**9)
        slot = struct.pack("<4Q3q2I", number, sequence, key, len(texts) + 1, *times, STATES[state], len(text))
        slots[number % CAPACITY * 64 : number % CAPACITY * 64 + 64] = slot
        texts += text
    last = max((r[0] for r in records), default=0) if last is None else last
    sizes = (HEADER_BYTES, 64, CAPACITY, TEXT_BYTES)
    numbers = (*sizes, pid, 5, 5, process, last, len(texts))
    header = struct.pack("<8s4I q2q q2Q 64s q 64s", b"JRTRACE3", *numbers, host, processes, job)
    return header.ljust(HEADER_BYTES, b"\0") + bytes(slots) + bytes(texts).ljust(TEXT_BYTES, b"\0")
