"""For tests whose jobs go wrong: whether a process is left, and a fixture that holds that soon nothing is."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
import uuid

import pytest

# In the environment of all that a test starts, and of what that starts.
_MARK = "TEST_THAT_STARTED_THIS"
_LIMIT_S = 10.0
_SHARED = pathlib.Path("/dev/shm")


def _of_processes(name: str) -> list[tuple[int, str]]:
    """/proc/PID/NAME of each process that can be looked into."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                found.append((int(folder.name), (folder / name).read_text(errors="replace")))
    return found


def lives(pid: int) -> bool:
    """Whether the process runs: zombies do not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _shared() -> set[pathlib.Path]:
    return set(_SHARED.iterdir()) if _SHARED.is_dir() else set()


@pytest.fixture
def nothing_left(monkeypatch, tmp_path_factory):
    """No process, no file or socket in the temporary folder, no file in /dev/shm that nobody has mapped."""
    tempfile.gettempdir()  # that of this process stays what it is
    mark = f"{_MARK}={uuid.uuid4().hex}"
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv(*mark.split("="))
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = _shared()
    yield
    deadline = time.monotonic() + _LIMIT_S
    while True:
        processes = [pid for pid, environ in _of_processes("environ") if mark in environ]
        files = [*temporary.rglob("*"), *(_shared() - before)]
        if any(path.parent == _SHARED for path in files):
            # Other tests run at the same time.
            maps = "".join(text for _, text in _of_processes("maps"))
            files = [path for path in files if path.parent != _SHARED or str(path) not in maps]
        if not processes and not files:
            return
        assert time.monotonic() < deadline, f"left: processes {processes}, files {files}"
        time.sleep(0.05)
