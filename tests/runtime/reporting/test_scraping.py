"""The web server of `jaxring metrics`: who may ask, and that it answers them while others flood it."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from jaxring.errors import JaxringError
from jaxring.runtime.reporting import scraping

TOKEN = "the token"


def numbers(_, start):
    start("200 OK", [])
    return [b"numbers"]


@pytest.fixture
def port():
    with scraping.serving("127.0.0.1", 0, scraping.guarded(numbers, TOKEN)) as port:
        yield port


def scraped(port, token=TOKEN):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def answering():
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize(
    "garbage",
    [b"", b"GET", b"GET / HTTP/1.1\r\nAuthorization: Bearer ", b"\x16\x03\x01\x02\x00\x01\x00", b"A" * 70_000, b"\r\n"],
)
def test_who_holds_connections_open_does_not_keep_scrapes_out(port, garbage):
    with contextlib.ExitStack() as held:
        for _ in range(200):
            sock = held.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            with contextlib.suppress(OSError):  # it was ended already
                sock.sendall(garbage)
            # A thread may still be ending when its place has gone to the next one.
            deadline = time.monotonic() + 60
            while answering() > scraping.AT_ONCE:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        for _ in range(3):
            assert scraped(port) == b"numbers"


def test_what_is_no_request_ends_its_own_connection_only(port):
    draw = random.Random(30)
    words = [b"GET ", b"POST ", b"/metrics", b" HTTP/1.1\r\n", b" HTTP/9.9\r\n", b"Authorization: Bearer ", b":"]
    words += [b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"\0", b"\xff\xfe", b"x" * 5000, b"\r\n"]
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", port), 60) as sock, contextlib.suppress(OSError):
            sock.sendall(b"".join(draw.choices([*words, draw.randbytes(40)], k=draw.randrange(1, 12))))
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(1 << 16):
                assert b"numbers" not in data
    assert scraped(port) == b"numbers"


def test_past_the_bound_it_is_busy(monkeypatch):
    monkeypatch.setattr(scraping, "_END_S", 0.1)
    come, over = threading.Semaphore(0), threading.Event()

    def slow(environ, start):
        come.release()
        over.wait()
        return numbers(environ, start)

    with scraping.serving("127.0.0.1", 0, slow) as port:
        found = []
        threads = [threading.Thread(target=lambda: found.append(scraped(port))) for _ in range(scraping.AT_ONCE)]
        for thread in threads:
            thread.start()
        try:
            assert all(come.acquire(timeout=60) for _ in threads)
            with pytest.raises(urllib.error.HTTPError, match="503"):
                scraped(port)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert found == [b"numbers"] * scraping.AT_ONCE
        assert scraped(port) == b"numbers"


def test_connections_for_which_no_thread_could_be_started_take_no_place(port, monkeypatch):
    def refused(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        for _ in range(scraping.AT_ONCE):
            with socket.create_connection(("127.0.0.1", port), 60) as sock:
                assert sock.recv(1) == b""
    assert scraped(port) == b"numbers"


def test_answers_without_the_token_do_not_change_the_next_one(port):
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError) as refused:
            scraped(port, "other")
        assert refused.value.headers.get_all("Content-Length") == [str(len(refused.value.read()))]
    assert dict(scraping._REALM).keys() == {"WWW-Authenticate", "Content-Type"}


@pytest.mark.parametrize("shown", ["", "the", "the token2", "\u00e9"])
def test_without_the_token_nothing_is_shown(port, shown):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        scraped(port, shown)


def test_hosts_of_a_job_make_the_same_token_for_their_user(tmp_path):
    made = scraping.token(tmp_path / "a", b"k" * 32)
    assert made == scraping.token(tmp_path / "a", b"other" * 6) == scraping.token(tmp_path / "b", b"k" * 32)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert (b"k" * 32).hex() != made != scraping.token(tmp_path / "c", None) != scraping.token(tmp_path / "d", None)


def test_two_that_make_one_file_at_once_have_one_token(tmp_path, monkeypatch):
    others, digest = [], scraping.hmac.digest

    def late(key, *arguments):
        made = digest(key, *arguments)
        if not others:
            others.append("")
            others.append(scraping.token(tmp_path / "a", b"other" * 6))
        return made

    monkeypatch.setattr(scraping.hmac, "digest", late)
    assert scraping.token(tmp_path / "a", b"k" * 32) == others[1] != ""
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_token_that_cannot_be_read_or_made_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JaxringError, match="the file is empty"):
        scraping.token(tmp_path / "empty", b"")
    for path in (tmp_path / "no folder" / "token", tmp_path / "link"):
        with pytest.raises(JaxringError, match=f"--token-file {path}: "):
            scraping.token(path, b"k")
    assert not (tmp_path / "elsewhere").exists()
