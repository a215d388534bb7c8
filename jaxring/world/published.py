"""The entries of a job's members in its store: a description of each process, and the job's secret."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.world.connections import handshake
from jaxring.world.identity import ProcessInfo
from jaxring.world.store import propose

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.world.store import Store
    from jaxring.world.waits import Wait, Waits

# Waits for the store are cut into slices of this length; between two of them the thread checks for a closed World.
_SLICE_S = 1.0


class Published:
    """Entries of the processes `members` of `count`, under keys that begin with `prefix`. Safe from any thread.

    `timeout_s` bounds each wait, which ends early once `closed()` is true.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        own: ProcessInfo,
        count: int,
        members: tuple[int, ...],
        timeout_s: float,
        closed: Callable[[], bool],
        waits: Waits,
    ) -> None:
        self._store, self._prefix, self._own = store, prefix, own
        self._count, self._members = count, members
        self._timeout_s, self._closed, self._waits = timeout_s, closed, waits
        self._infos: dict[int, ProcessInfo] = {}
        self._secret = b""

    def publish(self) -> None:
        """Publish this process, and the secret if it is the first member. JoinError where it has done so before."""
        own = self._own
        if propose(self._store, f"{self._prefix}process/{own.index}", own.to_json()) != own.to_json():
            raise JoinError(
                f"Process {own.index} has taken part in this job before, and was started again. Call "
                "jaxring.rebuild() in all processes before the first collective."
            )
        if own.index == self._members[0]:
            self._secret = secrets.token_bytes(handshake.SECRET_BYTES)
            self._store.set(self._prefix + "secret", self._secret)

    def absent(self) -> tuple[int, ...]:
        """Members that have not published themselves yet."""
        there = self._store.list(self._prefix + "process/")
        return tuple(p for p in self._members if str(p) not in there)

    def there(self) -> list[ProcessInfo]:
        """The members that have published themselves, without waiting. Raises JoinError, ValueError."""
        there = self._store.list(self._prefix + "process/")
        return [ProcessInfo.from_json(raw) for p, raw in there.items() if int(p) in self._members]

    def info(self, p: int) -> ProcessInfo:
        """Waits for the entry of process `p`. Raises JoinError where it is late, cannot be read or does not match."""
        if not 0 <= p < self._count:
            raise JoinError(f"There is no process {p} among {self._count}.")
        if p not in self._members:
            raise JoinError(f"Process {p} is lost: the others have gone on without it.")
        if p == self._own.index:
            return self._own
        known = self._infos.get(p)
        if known is None:
            known = self._infos[p] = self._fetch(p)
        return known

    def secret(self) -> bytes:
        """Waits for the job's secret. Raises JoinError."""
        if not self._secret:
            with self._waits.waiting(f"process {self._members[0]}, which makes the job's secret, to join") as wait:
                secret = self._read("secret", wait)
            if len(secret) != handshake.SECRET_BYTES:
                raise JoinError(f"The job's secret has {len(secret)} bytes instead of {handshake.SECRET_BYTES}.")
            self._secret = secret
        return self._secret

    def _fetch(self, p: int) -> ProcessInfo:
        own = self._own
        try:
            with self._waits.waiting(f"process {p} to join: it has not reached its first collective yet") as wait:
                raw = self._read(f"process/{p}", wait)
        except JoinError as error:
            raise JoinError(f"Process {p} of {self._count} has not joined: {error}") from error
        try:
            info = ProcessInfo.from_json(raw)
        except ValueError as error:
            raise JoinError(
                f"The entry that process {p} published cannot be read ({error}). Have all processes use the same "
                "version of jaxring."
            ) from error
        if info.index != p:
            raise JoinError(f"Process {p} published itself as process {info.index}.")
        if info.version != own.version:
            raise JoinError(
                f"The jaxring versions differ. {info}: {info.version}. {own}: {own.version}. Make them equal."
            )
        if info.settings != own.settings:
            theirs, ours = _differences(info.settings, own.settings)
            raise JoinError(f"The settings differ. {info}: {theirs}. {own}: {ours}. Make them equal.")
        return info

    def _read(self, key: str, wait: Wait) -> bytes:
        """Waits for an entry until it is there, this World is closed or the time is over."""
        began = time.monotonic()
        slice_s = min(_SLICE_S, self._timeout_s)
        while True:
            asked = time.monotonic()
            try:
                return self._store.get(self._prefix + key, slice_s)
            except JoinError as error:
                now = time.monotonic()
                if self._closed():
                    raise JoinError("This World is closed.") from error
                wait.check()
                if now - asked < slice_s / 2:
                    raise  # the store itself failed
                if now - began >= self._timeout_s:
                    raise JoinError(
                        f"No process published {self._prefix + key} within {self._timeout_s:g} s."
                    ) from error


def _differences(theirs: str, ours: str) -> tuple[str, str]:
    """The settings of each of two fingerprints that are not in the other."""
    one, other = theirs.split(" "), ours.split(" ")
    return " ".join(w for w in one if w not in other), " ".join(w for w in other if w not in one)
