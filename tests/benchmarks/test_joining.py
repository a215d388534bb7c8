"""The benchmark of a process that joins, with little state: it checks by itself that what comes is the state."""

from __future__ import annotations

import socket
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import joining
from tests import ROOT
from tests.hosts.hosts_netns import hosts


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--hosts", "1"], "two at least"), (["--rate", "0mbit"], "'0mbit' is not a rate")]
)
def test_what_cannot_be_measured_is_said_before_anything_starts(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        joining.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_sender_that_ends_early_ends_the_receiver():
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(b"123")
        with pytest.raises(ConnectionError, match="5 bytes before the end"):
            joining.receive(ours, memoryview(bytearray(8)))


def test_a_first_process_to_which_nobody_comes_ends(monkeypatch):
    monkeypatch.setattr(joining.jax, "process_index", lambda: 0)
    monkeypatch.setattr(joining.jax, "process_count", lambda: 2)
    monkeypatch.setattr(joining, "_CONNECT_S", 0.1)
    monkeypatch.setattr(joining, "_PORT", 0)
    with pytest.raises(TimeoutError):
        joining.by_socket(np.zeros(1), np.zeros(1), "127.0.0.1")


@pytest.mark.netns
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_it_measures_both_ways():
    command = [sys.executable, "-m", "benchmarks.joining", "--bytes", "1M", "--iters", "2"]
    with hosts(1):  # skips where this machine can make no namespaces
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jaxring.rebuild and the state / a TCP connection: " in done.stdout, done.stdout
