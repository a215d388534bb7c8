"""The benchmark of failing links: what it says where it cannot disturb, or a process ends."""

from __future__ import annotations

import contextlib
import subprocess

import pytest

from benchmarks import failover
from jaxring.errors import JaxringError


@contextlib.contextmanager
def job(script):
    """A job of one process, which runs that shell script."""
    made = failover._Job(1, "1gbit", 4, "Socket")
    member = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    made._members.append(member)
    try:
        yield made, member
    finally:
        member.kill()
        with contextlib.suppress(BrokenPipeError):
            member.communicate()


def test_a_link_that_cannot_be_disturbed_is_an_error():
    def fail():
        raise JaxringError("there is no such interface")

    with job("while read line; do echo 0.5 right; done") as (made, _):
        assert made.run("ring", failover._Disturber(lambda: None)) == 0.5
        with pytest.raises(JaxringError, match="no such interface"):
            made.run("ring", failover._Disturber(fail))


def test_a_member_that_has_ended_is_named():
    with job("exit 1") as (made, member):
        member.wait()
        with pytest.raises(JaxringError, match=r"Process 0 of ring, operation 1: it ended\."):
            made.run("ring")
