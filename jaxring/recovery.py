"""Recovery from an error within the process: end the operations in flight, and form the job again.

    try:
        params, loss = step(params, batch)
        jax.block_until_ready(loss)
    except jaxring.recovery.ERRORS:
        members = jaxring.shrink()  # or jaxring.rebuild(), if the lost processes are started again

All living processes call the same function. It begins a new epoch of the job with new links, which no message of the
old epoch reaches. `docs/recovery.md` says how to configure JAX itself, and what lost ranks mean for each collective. A
process that has run a collective on a GPU must be started again.
"""

from __future__ import annotations

import logging
import os
import threading

import jax

import jaxring._native as _native
from jaxring import _compat
from jaxring.errors import JaxringError
from jaxring.launcher.job_environment import bind_address
from jaxring.runtime import renewal, service
from jaxring.runtime.commit import Commits
from jaxring.runtime.cuda import service as cuda_service
from jaxring.settings import settings
from jaxring.tracing import checks
from jaxring.world import membership
from jaxring.world.membership import REBUILD, RESIZE, SHRINK, SUSPEND, Membership

__all__ = [
    "ERRORS",
    "Membership",
    "abort",
    "commit",
    "halted",
    "members",
    "rebuild",
    "restarted",
    "resume",
    "shrink",
    "suspend",
    "waiting",
]
logger = logging.getLogger("jaxring.runtime")

ERRORS: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError, JaxringError, ValueError)
"""What a step may raise when a process is lost, for ``except``: see docs/howto/rank-dies.md.

`jax.errors.JaxRuntimeError` is the usual one. jaxlib raises the same text as ValueError where a small program runs on
the calling thread. `jaxring.JaxringError` comes from jaxring's own functions and `jaxring.Communicator`.
"""

_commits_lock = threading.Lock()
_commits: Commits | None = None


def abort(reason: str = "") -> None:
    """End every collective in flight, in this process and all others that it has worked with.

    Each raises `jax.errors.JaxRuntimeError` ("ABORTED") that names this process and the reason, and so does every later
    one until `rebuild` or `shrink`. Returns at once, and raises nothing. Without effect where the job is aborted
    already.

    Args:
        reason: What the errors say, such as the name of what went wrong.

    Examples:
        Where a process cannot go on:

            jaxring.abort("the loss is not finite")
    """
    text = f"process {jax.process_index()} called jaxring.abort()" + (f": {reason}" if reason else "")
    _native.halt(text + ". Go on with jaxring.rebuild() or jaxring.shrink()", True)
    cuda_service.abort(text)


def rebuild(timeout: float | None = None, *, size: int | None = None, coordinator: str | None = None) -> Membership:
    """Form the job again of all its processes: the living ones, and those that were lost and have been started again.

    Every process calls it, a restarted one before its first collective. It returns when all have called; compiled
    programs stay valid and are planned again.

    With ``size`` the job goes on as one of that many processes, more or fewer than before: all living processes call it
    with the same arguments, are numbered anew in their order, and begin a new `jax.distributed`. The others of the
    ``size`` processes are new ones, with the last numbers; they initialise `jax.distributed` with the address of
    ``coordinator`` and call `rebuild()`. JAX's backend begins anew: `jax.devices()` has the devices of the ``size``
    processes, meshes and programs are made anew, and arrays of before can only be read (`numpy.asarray`).

    Args:
        timeout: Seconds to wait for the other processes. None: the longer of JAXRING_TIMEOUT and JAXRING_JOIN_TIMEOUT.
        size: The number of processes from now on. None: that of before.
        coordinator: "host:port" at which process 0 is to be the coordinator; with ``size`` only.

    Returns:
        The epoch, and the numbers of the processes that take part.

    Raises:
        jaxring.JoinError: Where a process does not call in time, or has ended or not come after all had agreed.
            Collectives then fail until another call succeeds, of this or of `shrink`, for which all call the same
            function.
        jaxring.JaxringError: In a process that has run collectives on a GPU, and where more than ``size`` processes
            live.
        TypeError: Where ``timeout`` is no number; then nothing has changed.
        ValueError: Where ``timeout`` is not positive, and for ``size`` without ``coordinator``; then nothing has
            changed.

    Examples:
        After an error of `jaxring.recovery.ERRORS`, in every process:

            members = jaxring.rebuild(timeout=120.0)
            print("epoch", members.epoch, "of processes", members.processes)
    """
    limit = _seconds("rebuild", timeout, settings().come_timeout)
    if size is not None:
        _begin_anew(size, coordinator, limit)
    return renewal.renew(REBUILD, limit)


def shrink(timeout: float | None = None) -> Membership:
    """Continue with the living processes: collectives run among their ranks, and means are over these.

    All of them call it. A process that is known to have ended is not waited for. One that does not call in time is left
    out, and gets a JoinError when it calls.

    Args:
        timeout: Seconds to wait for the other processes. None: JAXRING_JOIN_TIMEOUT.

    Returns:
        The epoch, and the numbers of the processes that take part.

    Raises:
        jaxring.JoinError: In a process that has been left out; and where one ends after all had agreed: call it again
            then.
        jaxring.JaxringError: In a process that has run collectives on a GPU.
        TypeError: Where ``timeout`` is no number; then nothing has changed.
        ValueError: Where ``timeout`` is not positive; then nothing has changed.

    Examples:
        After an error of `jaxring.recovery.ERRORS`, in every living process:

            members = jaxring.shrink()
            print("on with processes", members.processes)
    """
    return renewal.renew(SHRINK, _seconds("shrink", timeout, settings().join_timeout))


def suspend(timeout: float | None = None) -> Membership:
    """Give back the memory of all links and of what waits in them, between phases that need collectives.

    All members call it at the same step. It returns when all have called; programs stay compiled, and collectives raise
    until `resume`.

    Args:
        timeout: Seconds to wait for the other processes. None: JAXRING_JOIN_TIMEOUT.

    Returns:
        The epoch, and the numbers of the processes that take part.

    Raises:
        jaxring.JoinError: Where a process does not call in time: collectives then fail until another call of this and
            `resume`, of `rebuild` or of `shrink` succeeds.
        jaxring.JaxringError: In a process that has run collectives on a GPU.
        TypeError: Where ``timeout`` is no number; then nothing has changed.
        ValueError: Where ``timeout`` is not positive; then nothing has changed.

    Examples:
        For a phase without collectives:

            jaxring.suspend()
            evaluate(params)  # without collectives
            jaxring.resume()
    """
    return renewal.renew(SUSPEND, _seconds("suspend", timeout, settings().join_timeout))


def resume(timeout: float | None = None) -> Membership:
    """Take up collectives again after `suspend`: links are made again when they are needed.

    All members call it.

    Args:
        timeout: Seconds to wait for the other processes. None: JAXRING_JOIN_TIMEOUT.

    Returns:
        The epoch, and the numbers of the processes that take part.

    Raises:
        jaxring.JoinError: Where a process has not called in time; then call `rebuild` or `shrink`.
        jaxring.JaxringError: Where nothing is suspended.
        TypeError: Where ``timeout`` is no number; then nothing has changed.
        ValueError: Where ``timeout`` is not positive; then nothing has changed.
    """
    limit = _seconds("resume", timeout, settings().join_timeout)
    return renewal.resume(limit)


def commit(ok: bool = True, timeout: float | None = None) -> bool:
    """Whether the step that has just ended counts: True in all processes, or False in all.

    Every member calls it once at the end of each step, after it has waited for the step's results
    (`jax.block_until_ready`). Calls belong together by their order since the job began or was last formed. Where it
    returns False, keep the parameters of before; if a process may be lost, call `shrink` or `rebuild`, which all can do
    alike, and do the step again.

    There is one decision on each step, written once to the store of `jax.distributed`, which process 0 holds:

    * True only if every member has called it with ``ok`` true. Such a step has ended everywhere.
    * False as soon as one member votes so, is noticed to have ended before its vote arrived, or ends the job (`abort`,
      `shrink`, `rebuild`); or where a member has not voted within ``timeout`` seconds of another one's call. The log
      says why.
    * A process that ends after its vote has arrived counts as if it lived, and its end after the decision does not
      change it. All processes that return get this decision, also one that was stopped meanwhile. The next step fails.
    * A process whose wait ends by an exception (KeyboardInterrupt, JoinError) has voted and does not know the decision.

    Runs no collective, and takes one thread at a time. The end of a process is noticed by those that have worked with
    it in collectives on CPUs; otherwise only the timeout ends the wait.

    Args:
        ok: Whether this process's own step has ended well.
        timeout: Seconds to wait for the other processes, from a member's call to the last other one's. None: the longer
            of JAXRING_TIMEOUT and JAXRING_JOIN_TIMEOUT.

    Returns:
        The decision, the same in all processes.

    Raises:
        jaxring.JoinError: Where the store of `jax.distributed` is lost.
        jaxring.JaxringError: In a restarted process that has not called `rebuild`, and between `suspend` and `resume`.
        TypeError: Where ``timeout`` is no number; the process has not voted then.
        ValueError: Where ``timeout`` is not positive; the process has not voted then.

    Examples:
        A step of training:

            try:
                new, ok = jax.block_until_ready(step(params, batch)), True
            except jaxring.recovery.ERRORS:
                ok = False
            if jaxring.commit(ok):
                params = new
            else:
                jaxring.shrink()
    """
    global _commits
    limit = _seconds("commit", timeout, settings().come_timeout)
    halt = _native.halted
    job, current = service.job(), service.job().membership()
    if job.suspended():
        raise JaxringError("jaxring.commit(): the job is suspended. Call jaxring.resume() before.")
    process = jax.process_index()
    refusal = "" if ok else f"process {process} called jaxring.commit(False)"
    if current.count == 1:
        why = refusal or halt() or ""
    else:
        with _commits_lock:
            if _commits is None or _commits.membership != current or _commits.store is not job.store():
                if restarted():
                    raise JaxringError(
                        f"jaxring.commit(): process {process} has been started again. Call jaxring.rebuild() before."
                    )
                _commits = Commits(job.store(), process, renewal.START, current)
            why = _commits.decide(refusal or halt() or "", limit, _native.gone, lambda: halt() or "")
    if why:
        logger.warning("The step does not count in any process: %s", why)
    return not why


def members() -> Membership:
    """The processes that take part now.

    Returns:
        The epoch, and the numbers of the processes.
    """
    return service.job().membership()


def halted() -> str | None:
    """Why every collective fails until `rebuild` or `shrink`.

    Returns:
        The sentence of the error, or None where collectives run.
    """
    return _native.halted()


def restarted() -> bool:
    """Whether this process stands in for one that was lost, so that it has to call `rebuild` first.

    Returns:
        True until it has.

    Raises:
        jaxring.JoinError: Where the store of `jax.distributed` is lost.
    """
    job = service.job()
    if jax.process_count() == 1 or job.joined():
        return False
    return membership.has_begun(job.store(), jax.process_index())


def waiting() -> tuple[int, ...]:
    """Lost processes that have been started again and wait in `rebuild` for the others.

    Returns:
        Their numbers.

    Raises:
        jaxring.JoinError: Where the store of `jax.distributed` is lost.
    """
    job = service.job()
    return membership.waiting(job.store(), job.membership()) if jax.process_count() > 1 else ()


def _seconds(name: str, timeout: float | None, default: float) -> float:
    return default if timeout is None else checks.seconds(f"jaxring.{name}", timeout)


def _begin_anew(size: int, coordinator: str | None, timeout_s: float) -> None:
    """Leave the job with all living processes, for one of ``size`` processes."""
    if coordinator is None:
        raise ValueError("jaxring.rebuild(size=...): give coordinator=, the address and port for process 0.")
    process = jax.process_index()
    living = renewal.renew(RESIZE, timeout_s).processes
    if len(living) > size:
        raise JaxringError(
            f"jaxring.rebuild(size={size}): {len(living)} processes live. Give their number at least; jaxring.resume() "
            "goes on as before."
        )
    _compat.leave_distributed()
    service.forget()
    jax.distributed.initialize(
        coordinator,
        size,
        living.index(process),
        initialization_timeout=max(1, int(timeout_s)),
        coordinator_bind_address=bind_address(coordinator, os.environ),
    )
    if jax.process_count() != size:
        raise JaxringError(
            f"jaxring.rebuild(size={size}): process {process} has left its job, but JAX counts {jax.process_count()} "
            "processes in the next one: something has replaced jax.distributed.initialize. Start the processes again."
        )
