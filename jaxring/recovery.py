"""Going on after an error without leaving the process: end what is in flight, and form the job anew.

    try:
        params, loss = step(params, batch)
        jax.block_until_ready(loss)
    except (jax.errors.JaxRuntimeError, ValueError):
        members = jaxring.shrink()  # or jaxring.rebuild(), if what was lost is started again

All processes that live call the same function, which brings them to a new epoch of the job, with new links:
nothing of the old one gets there. `docs/recovery.md` says what JAX itself has to be told, and what lost ranks mean for
each collective. GPUs: a process that has run a collective on one has to be started again.
"""

from __future__ import annotations

import secrets
import threading
import time

import jax

import jaxring._native as _native
from jaxring.errors import JaxringError
from jaxring.runtime import service
from jaxring.runtime.cuda import service as cuda_service
from jaxring.settings import settings
from jaxring.world import membership
from jaxring.world.membership import REBUILD, SHRINK, Membership

__all__ = ["Membership", "abort", "halted", "members", "rebuild", "restarted", "shrink", "waiting"]

# Names this start of the process.
_token = secrets.token_hex(16)
_lock = threading.Lock()
# Once agreed, members have at least so long to come.
_ENTER_S = 20.0
# So long is nobody disturbed who does not come.
_PATIENCE_S = 10.0


def abort(reason: str = "") -> None:
    """End every collective in flight, in this process and all others that it has worked with.

    Each raises `jax.errors.JaxRuntimeError` ("ABORTED") that names this process and the reason, and so does every later
    one until `rebuild` or `shrink`. Returns at once. Without effect where the job is aborted already.
    """
    text = f"process {jax.process_index()} called jaxring.abort()" + (f": {reason}" if reason else "")
    _native.halt(text + ". Go on with jaxring.rebuild() or jaxring.shrink()", True)
    cuda_service.abort(text)


def rebuild(timeout: float | None = None) -> Membership:
    """Form the job of all its processes anew: those that live, and those that were lost and have been started again.

    Every process calls it, a restarted one before its first collective. It returns when all are there; programs that
    are compiled run on, and plan anew. JoinError where one does not come in ``timeout`` seconds (default: the longer of
    JAXRING_TIMEOUT and JAXRING_JOIN_TIMEOUT): collectives then fail until another call of this or of `shrink` succeeds.
    JaxringError in a process that has run collectives on a GPU.
    """
    return _renew(REBUILD, settings().come_timeout if timeout is None else timeout)


def shrink(timeout: float | None = None) -> Membership:
    """Go on with the processes that live: collectives run among their ranks, and means are over these.

    All of them call it. Who is known to have ended is not waited for; who does not come in ``timeout`` seconds
    (default: JAXRING_JOIN_TIMEOUT) is left out, and gets a JoinError when it comes. Other errors are `rebuild`'s.
    """
    return _renew(SHRINK, settings().join_timeout if timeout is None else timeout)


def members() -> Membership:
    """Who takes part now."""
    return service.job().membership()


def halted() -> str | None:
    """Why every collective fails until `rebuild` or `shrink`, or None."""
    return _native.halted()


def restarted() -> bool:
    """Whether this process stands in for one that was lost, so that it has to call `rebuild` first."""
    job = service.job()
    if jax.process_count() == 1 or job.joined():
        return False
    return membership.has_begun(job.store(), jax.process_index())


def waiting() -> tuple[int, ...]:
    """Lost processes that have been started again and wait in `rebuild` for the others."""
    job = service.job()
    return membership.waiting(job.store(), job.membership()) if jax.process_count() > 1 else ()


def _renew(kind: str, timeout_s: float) -> Membership:
    process = jax.process_index()
    job = service.job()
    with _lock:
        # Others may still be in what this process has ended. Unless something has failed, they come by themselves.
        text = f"process {process} called jaxring.{kind}()"
        _native.halt(text, _native.troubled())
        if cuda_service.abort(text):
            raise JaxringError(
                f"jaxring.{kind}(): this process has run collectives on a GPU, whose memory the other processes' GPUs "
                "know, and a kernel that was given up may have taken the CUDA context with it: start the processes "
                "again, from a checkpoint."
            )
        current = job.membership()
        deadline = time.monotonic() + timeout_s
        patience = threading.Timer(_PATIENCE_S, _native.halt, (text, True))
        patience.daemon = True
        patience.start()
        try:
            fresh = not job.joined()
            # Links in the making end first.
            job.leave(deadline)
            if current.count == 1:
                found = Membership(current.epoch + 1, 1, (0,))
            else:
                store, gone = job.store(), _native.gone
                found = membership.agree(store, process, _token, fresh, current, kind, timeout_s, gone)
        finally:
            patience.cancel()
            patience.join()  # what it does is for this epoch
        job.enter(found, max(deadline, time.monotonic() + _ENTER_S), _native.gone)
        return found
