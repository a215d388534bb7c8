"""The links that other processes make to this one: which are made, which are being made, and which are expected."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Used as the channel of the control connection, which a process makes to every process that it sends to.
CONTROL = -1


class Claims:
    """A claim is a (process, channel). Safe from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._made: set[tuple[int, int]] = set()
        self._making: set[tuple[int, int]] = set()
        self._expected: dict[tuple[int, int], float] = {}

    def expect(self, claims: Iterable[tuple[int, int]], deadline: float) -> bool:
        """Expect these by `deadline` (time.monotonic seconds). Returns whether any of them is not made yet."""
        with self._changed:
            missing = [claim for claim in claims if claim not in self._made]
            self._expected.update(dict.fromkeys(missing, deadline))
        return bool(missing)

    def expecting(self) -> bool:
        """Whether a link is expected that is not made yet and whose deadline is not over."""
        if not self._expected:  # the usual case; this is asked for each unauthenticated peer
            return False
        now = time.monotonic()
        with self._changed:
            self._expected = {claim: until for claim, until in self._expected.items() if until > now}
            return bool(self._expected)

    @contextlib.contextmanager
    def making(self, claim: tuple[int, int], deadline: float) -> Iterator[None]:
        """Claim a link while it is being made. A failure releases it; JoinError where the link exists already."""
        with self._changed:
            # The other side may learn of a failure and try again before this side has released the claim.
            self._changed.wait_for(lambda: claim not in self._making, max(0.0, deadline - time.monotonic()))
            if claim in self._made or claim in self._making:
                what = "control connection" if claim[1] == CONTROL else f"link on channel {claim[1]}"
                raise JoinError(f"Process {claim[0]} has a {what} already.")
            self._making.add(claim)
        made = False
        try:
            yield
            made = True
        finally:
            with self._changed:
                self._making.discard(claim)
                if made:
                    self._made.add(claim)
                    self._expected.pop(claim, None)
                self._changed.notify_all()
