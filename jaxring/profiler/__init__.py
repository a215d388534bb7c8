"""Profiles that show jaxring's operations: `trace` adds a track of them to JAX's own.

Every profile taken with `jax.profiler.trace` shows a collective's custom call under a name that says operation, operand
bytes per rank and axes: ``jaxring_all_reduce_sum_4096B_over_data.7``. On CPU that event is only the call that begins
the operation. When it ran and how it was carried is known to the engine, whose records `trace` adds.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import jax

import jaxring._native as _native
from jaxring.profiler import perfetto, xplane
from jaxring.profiler.spans import Span, spans

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["trace"]

logger = logging.getLogger("jaxring.profiler")

# The engine keeps its last 4096 records, so they are fetched while the profile is taken.
_FETCH_S = 0.02


@contextlib.contextmanager
def trace(log_dir: str | os.PathLike[str], **options: Any) -> Iterator[None]:
    """`jax.profiler.trace` with a track "jaxring" of this process's operations.

    The track is in the ``.xplane.pb`` that XProf reads and in the ``.json.gz`` that Perfetto reads. An event spans the
    time from the arrival of the last local rank to the end of the last lane. Its arguments: op, dtype, bytes (operand
    bytes per rank), axes, source line, ranks, algorithm, protocol, channels, transports, the number of the execution,
    how it ended, and how long the first local rank had waited for the others and the plan.

    Nothing is raised on the way out of the block except what the block itself raised: a profile that cannot be written
    or extended is a warning of the logger "jaxring.profiler", and JAX's own files then stay as JAX wrote them.

    Args:
        log_dir: The folder for the profile. In a job of several processes each one writes below ``log_dir/process_N``,
            where N is `jax.process_index()`: JAX names a profile's files by the second and the host, so processes of
            one host would overwrite each other's.
        **options: Those of `jax.profiler.trace`.

    Returns:
        A context manager.

    Raises:
        RuntimeError: At the begin of the block, where JAX cannot begin a profile, for example because another one is
            being taken.

    Examples:
        Of one step of training:

            with jaxring.profiler.trace("/tmp/profile"):
                jax.block_until_ready(step(params, batch))
    """
    folder = _folder(pathlib.Path(log_dir))
    before = _files(folder)
    fetcher = _Fetcher()
    with contextlib.ExitStack() as profile:
        profile.enter_context(jax.profiler.trace(folder, **options))
        profile.enter_context(fetcher)
        taken = profile.pop_all()
    try:
        yield
    finally:
        try:
            taken.close()
            written = [path for path in _files(folder) if path not in before]
            _extend(written, spans(fetcher.records.values(), fetcher.ended))
        except Exception as error:
            # The work in the block is done, and worth more than its profile.
            logger.warning("the profile in %s is not complete: %s: %s", folder, type(error).__name__, error)


def _folder(log_dir: pathlib.Path) -> pathlib.Path:
    return log_dir / f"process_{jax.process_index()}" if jax.process_count() > 1 else log_dir


class _Fetcher:
    """Collects the engine's records from here on."""

    def __init__(self) -> None:
        self.records: dict[int, _native.OperationRecord] = {}
        self.ended = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxring-profiler", daemon=True)

    def __enter__(self) -> None:
        old = _native.records(0)
        self._seen = old[-1].number if old else 0
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._fetch()
        self.ended = _native.clock()

    def _run(self) -> None:
        while not self._stop.wait(_FETCH_S):
            self._fetch()

    def _fetch(self) -> None:
        # Those that still ran are looked at again.
        running = [number for number, record in self.records.items() if record.state == "running"]
        new = _native.records(min(running, default=self._seen + 1) - 1)
        for record in new:
            if record.number > self._seen + 1:
                logger.warning("%d operations are missing from the profile", record.number - self._seen - 1)
            self._seen = max(self._seen, record.number)
            self.records[record.number] = record


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.glob("plugins/profile/*/*") if path.suffix in (".pb", ".gz"))


def _extend(files: list[pathlib.Path], ours: list[Span]) -> None:
    """Adds the track to what JAX has just written."""
    profiles = [path for path in files if path.name.endswith(".xplane.pb")]
    mine = [path for path in profiles if path.name == f"{socket.gethostname()}.xplane.pb"]
    if not profiles:
        logger.warning("JAX wrote no profile, so there is nothing to add jaxring's operations to")
        return
    profile = (mine or profiles)[-1]
    start = xplane.start_time_ns(profile)
    # The engine's clock to the profile's, which counts from its start.
    shift = time.time_ns() - _native.clock() - start
    moved = [span._replace(begin_ns=span.begin_ns + shift, end_ns=span.end_ns + shift) for span in ours]
    xplane.append(profile, moved)
    for path in profile.parent.glob("*trace.json.gz"):
        if path in files:
            perfetto.append(path, moved)
