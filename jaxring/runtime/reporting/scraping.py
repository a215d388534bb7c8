"""The web server of `jaxring metrics`: answers who shows the token, and is not held up by who does not.

It has so many connections at a time, each with a thread. Past that the oldest one that has not sent its request yet
makes room, so a client that asks at once is answered whatever others hold open.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import threading
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from jaxring.errors import JaxringError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterable, Iterator

AT_ONCE = 32
# For a part of a request to come, and for a connection that was ended to be given up by its thread.
_PART_S, _END_S = 10, 1
_REALM = [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")]
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._slots = threading.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._silent: dict[socket.socket, None] = {}  # whose request has not come, the oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self._end_oldest()
            if not self._slots.acquire(timeout=_END_S):  # all are being answered
                _busy(request)
                self.shutdown_request(request)
                return
        with self._lock:
            self._silent[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started now
            self.has_asked(request)
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._slots.release()

    def has_asked(self, request: Any) -> None:
        """This connection's request is there: it is answered whatever others hold open."""
        with self._lock:
            self._silent.pop(request, None)

    def _end_oldest(self) -> None:
        with self._lock:
            request = next(iter(self._silent), None)
            if request is None:
                return
            del self._silent[request]
            _busy(request)
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone before its answer is no error."""


class _Handler(WSGIRequestHandler):
    timeout = _PART_S

    def parse_request(self) -> bool:
        whole = super().parse_request()
        self.server.has_asked(self.connection)  # type: ignore[attr-defined]
        return whole

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


def _busy(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.send(_BUSY, socket.MSG_DONTWAIT)


@contextlib.contextmanager
def serving(host: str, port: int, application: Callable[..., Any]) -> Iterator[int]:
    """Serve from threads of its own; the port. Raises JaxringError where one cannot listen there."""
    try:
        server = make_server(host, port, application, _Server, _Handler)
    except OSError as error:
        raise JaxringError(f"--listen {host}:{port}: {error.strerror}.") from error
    threading.Thread(target=server.serve_forever, name="jaxring-metrics", daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def guarded(application: Callable[..., Any], token: str) -> Callable[..., Any]:
    """The application, for requests that show the token."""
    expected = f"Bearer {token}".encode()

    def checked(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        shown = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
        if not hmac.compare_digest(shown, expected):
            start("401 Unauthorized", list(_REALM))  # to which wsgiref adds
            return [b"This needs the token of jaxring metrics' --token-file.\n"]
        answer: Iterable[bytes] = application(environ, start)
        return answer

    return checked


def token(path: pathlib.Path, key: bytes | None) -> str:
    """The token that a file holds. Where there is none, it is made of the job's viewing key, or at random without one,
    for this user alone. A job's hosts so have one token, with which the job cannot be viewed.

    Raises JaxringError for what cannot be read, made or shown in a request.
    """
    try:
        if not path.exists():
            _make(path, hmac.digest(key or secrets.token_bytes(32), b"metrics\0", "sha256").hex() + "\n")
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise JaxringError(f"--token-file {path}: {error}.") from error
    if not found:
        raise JaxringError(f"--token-file {path}: the file is empty.")
    return found


def _make(path: pathlib.Path, text: str) -> None:
    """The file with that text, for this user alone, unless another process has made it: it is there with all or not."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(text)
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
