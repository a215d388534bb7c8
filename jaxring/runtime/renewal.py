"""Begins the next epoch of the job within the process: `jaxring.recovery` has the calls that users make."""

from __future__ import annotations

import secrets
import threading
import time

import jax

import jaxring._native as _native
from jaxring.errors import JaxringError
from jaxring.runtime import service
from jaxring.runtime.cuda import service as cuda_service
from jaxring.world import membership
from jaxring.world.membership import RESIZE, SUSPEND, Membership

# Names this start of the process.
START = secrets.token_hex(16)
_lock = threading.Lock()
# How long members have at least to begin the epoch once they have agreed on it.
_ENTER_S = 20.0
# How long after rebuild() or shrink() began the other processes' operations are left to end by themselves.
_PATIENCE_S = 10.0


def renew(kind: str, timeout_s: float) -> Membership:
    """Ends the operations in flight, and begins the next epoch with the members that all have agreed on.

    ``kind``: RESIZE and SUSPEND leave the new epoch without links. JoinError where another process does not come in
    time or has ended; JaxringError in a process that has run collectives on a GPU.
    """
    process = jax.process_index()
    job = service.job()
    with _lock:
        # Others may still be in an operation that this process has ended. Unless one has failed, it ends by itself.
        suspends = kind in (SUSPEND, RESIZE)
        text = f"process {process} called jaxring.{membership.call(kind)}"
        text += ". Go on with jaxring.resume()" if suspends else ""
        _native.halt(text, _native.troubled())
        if cuda_service.abort(text):
            raise JaxringError(
                f"jaxring.{membership.call(kind)}: this process has run collectives on a GPU, whose memory the other "
                "processes' GPUs know, and a kernel that was given up may have taken the CUDA context with it: start "
                "the processes again, from a checkpoint."
            )
        current = job.agreed()
        deadline = time.monotonic() + timeout_s
        patience = threading.Timer(_PATIENCE_S, _native.halt, (text, True))
        patience.daemon = True
        patience.start()
        try:
            fresh = not job.joined()
            returned: tuple[int, ...] = ()
            # Links that are being made are ended first.
            job.leave(deadline)
            if current.count == 1:
                found = Membership(current.epoch + 1, 1, (0,))
            else:
                store = job.store()
                found = membership.agree(store, process, START, fresh, current, kind, timeout_s, job.gone)
                returned = membership.returned(store, found)
        finally:
            patience.cancel()
            patience.join()  # it must not halt the next epoch
        enough = max(deadline, time.monotonic() + _ENTER_S)
        if suspends:
            job.suspend(found, enough)
        else:
            job.enter(found, enough, _native.gone, returned)
        return found


def resume(timeout_s: float) -> Membership:
    """Makes links possible again in the epoch that `renew` has suspended. JoinError where a member does not come in
    time; JaxringError where nothing is suspended."""
    job = service.job()
    with _lock:
        if not job.suspended():
            raise JaxringError("jaxring.resume(): this process has not called jaxring.suspend().")
        found = job.membership()
        job.enter(found, time.monotonic() + timeout_s, _native.gone)
        return found
