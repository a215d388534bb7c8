"""`jaxring run` over hosts: what it starts on each, and what it makes of their launchers' reports."""

from __future__ import annotations

import io
import shlex
import time

import pytest

from jaxring.cli import main
from jaxring.errors import JaxringError
from jaxring.launcher import hosts
from jaxring.launcher.failure_report import Report, encode
from jaxring.launcher.failures import Failures
from jaxring.launcher.job_environment import bind_address, environment

ECHO = Report(1.0, 1, "JaxringError", "lost rank 1", "a.py:5", True)
CAUSE = Report(2.0, 1, "ValueError", "my own bug", "a.py:4", False)


def test_each_host_gets_its_part_of_the_job():
    made = hosts.commands(["u@a", "b"], "ssh -p 7", "", ["-n", "2", "x y.py"], {"JAX_A": "1 2", "HOME": "/root"})
    lines = []
    for number, (command, host) in enumerate(zip(made, ["u@a", "b"], strict=True)):
        *ssh, line = command.argv(3)
        assert ssh == ["ssh", "-p", "7", host]
        assert command.lifeline
        words = shlex.split(line)
        assert words[:2] == ["cd", words[1]]
        assert "JAX_A=1 2" in words
        assert not [word for word in words if word.startswith("HOME=")]
        assert words[words.index("--node-rank") + 1] == str(number)
        assert words[-3:] == ["-n", "2", "x y.py"]
        lines.append(words[words.index("--coordinator") + 1])
    assert lines[0] == lines[1]  # one port for all
    assert lines[0].startswith("a:")


@pytest.mark.parametrize("text", ["a,,b", "a,a", "-oProxyCommand=x,b", "a b", "a;b"])
def test_what_is_no_list_of_hosts(text):
    with pytest.raises(JaxringError, match="--hosts"):
        hosts.names(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nnodes", "2"], "--nnodes needs --coordinator"),
        (["--nnodes", "2", "--node-rank", "2", "--coordinator", "a:1"], "--node-rank 2 is none of --nnodes 2"),
        (["--coordinator", "a"], "--coordinator a is not HOST:PORT"),
        (["--hosts", "a,b", "--nnodes", "2", "--coordinator", "a:1"], "--hosts starts all hosts by itself"),
        (["--nnodes", "2", "--coordinator", "a:1", "--restart", "1"], "--restart works on one host"),
    ],
)
def test_options_that_do_not_go_together(options, said, capsys):
    assert main(["run", "-n", "1", *options, "x.py"]) == 1
    assert said in capsys.readouterr().err


def test_the_coordinator_is_bound_to_an_address_and_not_to_a_name():
    bound = "JAX_COORDINATOR_BIND_ADDRESS"
    assert environment({}, "10.0.0.1:5", 2, 0, None)[bound] == "10.0.0.1:5"
    assert environment({}, "[::1]:5", 2, 0, None)[bound] == "[::1]:5"
    assert bound not in environment({}, "hosta:5", 2, 0, None)


def test_the_next_coordinator_is_bound_to_its_own_port():
    def bound(coordinator, before, address="127.0.0.1:5"):
        names = {"JAX_COORDINATOR_BIND_ADDRESS": before, "JAX_COORDINATOR_ADDRESS": address}
        return bind_address(coordinator, names)

    assert bound("10.0.0.1:7", "127.0.0.1:5") == "10.0.0.1:7"
    assert bound("[::1]:7", "127.0.0.1:5") == "[::1]:7"
    assert bound("hosta:7", "127.0.0.1:5") == "[::]:7"
    assert bound("hosta:7", "0.0.0.0:5") == "0.0.0.0:7"  # what the user has chosen
    assert bound("hosta:7", "") is None


def test_reports_are_taken_out_of_what_a_host_says():
    said, reports = io.BytesIO(), []
    stream = hosts.Remote(said, reports.append)
    line = hosts._MARK + b"3 " + encode(CAUSE)
    stream.feed(b"[3] a traceback\n" + line[:20])
    stream.feed(line[20:] + hosts._MARK + b"x nonsense\nmore\n")
    stream.end()
    assert said.getvalue() == b"[3] a traceback\n" + hosts._MARK + b"x nonsense\nmore\n"
    assert [(each.kind, each.message) for each in reports] == [("process 3: ValueError", "my own bug")]
    assert abs(reports[0].when - time.monotonic()) < 60  # this host's clock


def test_a_report_is_taken_from_behind_an_unfinished_line():
    said, reports = io.BytesIO(), []
    stream = hosts.Remote(said, reports.append)
    stream.feed(b"\r 45%|##" + hosts._MARK + b"3 " + encode(CAUSE) + b"\r 50%|###")
    stream.end()
    assert said.getvalue() == b"\r 45%|##\n\r 50%|###\n"
    assert [each.message for each in reports] == ["my own bug"]


def test_a_hosts_own_cause_is_named_though_its_echo_was_read_first():
    failures = Failures(["a", "b"])
    alive = {0: 1 << 30, 1: (1 << 30) + 1}
    failures.reported(1, ECHO)
    assert failures.decide(alive, failures.echoes()) is None
    failures.reported(1, CAUSE)
    failures.reported(1, ECHO)
    assert failures.decide(alive, failures.echoes()).cause() == str(CAUSE)
    # What comes once that is known changes nothing.
    failures.reported(0, ECHO)
    failures.reported(0, CAUSE)
    assert failures.summary().endswith("host a failed because of it")


def test_an_ipv6_address_gets_brackets():
    (made,) = hosts.commands(["u@fd00::1"], "ssh", "", [], {})
    words = shlex.split(made.argv(3)[-1])
    assert words[words.index("--coordinator") + 1].startswith("[fd00::1]:")


def test_the_cause_is_named_though_its_echo_was_read_first():
    failures = Failures(["a", "b"])
    failures.reported(0, ECHO)
    alive = {0: 1 << 30, 1: (1 << 30) + 1}
    assert failures.decide(alive, failures.echoes()) is None
    failures.reported(1, CAUSE)
    assert failures.decide(alive, failures.echoes()).rank == 1
    assert failures.summary() == ("host b failed first: ValueError: my own bug (a.py:4); host a failed because of it")
