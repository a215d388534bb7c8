"""The collectives of each program that this process has lowered, in order. Processes compare them at the first use.

A call site of the engine knows only its call's text, so programs are found by that text. Programs that are the same up
to a call share its text; then several are found.
"""

from __future__ import annotations

import collections
import hashlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxring.runtime.call import CallSpec

# How many programs may be lowered at a time: one within another, by several threads.
_MOST_OPEN = 64
# How many programs of a thread are kept with their calls until they are compiled.
_MOST_LOWERED = 64
# How many collectives of all programs are kept. Older programs are dropped.
_MOST_ENTRIES = 1 << 16


class Listing:
    """A program: ``name``, a line for each collective, and whether the main thread lowered it."""

    def __init__(self, name: str, on_main_thread: bool) -> None:
        self.name, self.on_main_thread = name, on_main_thread
        self.entries: list[str] = []
        self.calls: list[bytes] = []
        self._hash = hashlib.blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        """Equal for programs with the same collectives, whatever their data."""
        return self._hash.hexdigest()

    def add(self, entry: str, same: str = "") -> None:
        """Adds a line for people, and what of it is the same in every process where that is not all."""
        self.entries.append(entry)
        self._hash.update((same or entry).encode() + b"\n")


class _Here(threading.local):
    """The last programs that this thread lowered, by the letters of their names: JAX spells one name in two ways."""

    programs: collections.OrderedDict[str, tuple[Listing, set[str]]]

    def __init__(self) -> None:
        self.programs = collections.OrderedDict()

    def lowered(self, listing: Listing, text: str) -> None:
        name = _letters(listing.name)
        found = self.programs.get(name)
        if found is None or found[0] is not listing:
            found = self.programs[name] = (listing, set())
            self.programs.move_to_end(name)
            if len(self.programs) > _MOST_LOWERED:
                self.programs.popitem(last=False)
        found[1].add(text)


_here = _Here()
_lock = threading.Lock()
_open: collections.OrderedDict[int, tuple[object, Listing]] = collections.OrderedDict()
# Programs that one of XLA's threads has noted, until the thread that compiles them says so, by their names' letters.
_compiling: collections.OrderedDict[str, Listing] = collections.OrderedDict()
_listings: collections.OrderedDict[int, Listing] = collections.OrderedDict()
_by_call: dict[bytes, list[Listing]] = {}
_entries = 0


def note(token: object, program: str, spec: CallSpec, text: str, shown: str = "", here: bool = True) -> None:
    """Records a collective of the program that is being lowered: ``spec``, which its call carries as ``text``.

    ``token`` is an object that all calls of one lowering share, and ``program`` the program's name. ``shown`` is the
    call's place for people, where the spec's is not; processes may differ in it. ``here``: whether this thread is the
    one that lowers and compiles the program, and not one of XLA's; if not, `compiled` says it later.
    """
    global _entries
    options = spec.options()
    same = ", ".join([spec.describe(), *options])
    entry = ", ".join([spec.describe(shown), *options])
    call = _of(text)
    with _lock:
        found = _open.get(id(token))
        if found is None:
            listing = Listing(program, here and threading.current_thread() is threading.main_thread())
            if not here:
                _compiling[_letters(program)] = listing
                if len(_compiling) > _MOST_OPEN:
                    _compiling.popitem(last=False)
            _open[id(token)] = (token, listing)
            _listings[id(listing)] = listing
            if len(_open) > _MOST_OPEN:
                _open.popitem(last=False)
        else:
            listing = found[1]
            _open.move_to_end(id(token))
        listing.add(entry, same)
        listing.calls.append(call)
        _by_call.setdefault(call, []).append(listing)
        _entries += 1
        while _entries > _MOST_ENTRIES and len(_listings) > 1:
            _forget(_listings.popitem(last=False)[1])
    if here:
        _here.lowered(listing, text)


def compiled(name: str) -> list[str]:
    """This thread has compiled a program of this name. Returns the texts of the calls that it had lowered for it."""
    letters = _letters(name)
    with _lock:
        listing = _compiling.pop(letters, None)
        if listing is not None:
            listing.on_main_thread = threading.current_thread() is threading.main_thread()
    found = _here.programs.get(letters)
    return sorted(found[1]) if found is not None else []


def _forget(listing: Listing) -> None:
    global _entries
    _entries -= len(listing.entries)
    for call in listing.calls:
        _by_call[call].remove(listing)
        if not _by_call[call]:
            del _by_call[call]


def of_call(text: str) -> list[Listing]:
    """The programs that hold this call, the latest first; none if it was lowered elsewhere."""
    with _lock:
        latest = reversed(_by_call.get(_of(text), ()))
        found: dict[str, Listing] = {}
        for listing in latest:
            found.setdefault(listing.digest, listing)
        return list(found.values())


def known(digests: frozenset[str]) -> bool:
    """Whether this process has lowered one of these."""
    with _lock:
        return any(listing.digest in digests for listing in _listings.values())


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name))


def _of(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
