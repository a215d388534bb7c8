"""A benchmark's command starts itself on hosts with all of its arguments, and measures where it was started so."""

from __future__ import annotations

import argparse
import sys
import types

import pytest

from benchmarks import namespaces
from jaxring.errors import JaxringError


def parser():
    made = argparse.ArgumentParser()
    made.add_argument("--rows", type=int, default=8)
    made.add_argument("--devices", type=int)
    namespaces.add_arguments(made, rate="1gbit")
    return made


def parsed(argv):
    return parser().parse_args(argv)


class Hosts:
    """Hosts that exist in name only, on which nothing is started."""

    def __init__(self, count, rate):
        self.count, self.rate = count, rate

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def describe(self):
        return f"{self.count} hosts"

    def address(self, process):
        return f"10.0.0.{process}"

    def command(self, process, folder, command):
        return [f"on {process}", *command]


class Children(list):
    """Takes the place of `subprocess.Popen`, and keeps what would be started: (command, environment)."""

    def __call__(self, command, env):
        self.append((command, env))
        return types.SimpleNamespace(kill=lambda: None, wait=lambda _: len(self))


@pytest.mark.parametrize("behind", [[], ["--", "--steps", "3"]])
def test_the_command_on_each_host_has_all_arguments(monkeypatch, behind):
    started, joined = Children(), []
    monkeypatch.setattr(namespaces, "Hosts", Hosts)
    monkeypatch.setattr(namespaces.subprocess, "Popen", started)
    monkeypatch.setattr(namespaces, "_join", lambda: joined.append(True))
    argv = ["--rows", "5", "--hosts", "4", "--devices", "2", *behind]
    arguments, rest = parser().parse_known_args(argv)
    assert namespaces.run_or_join("benchmarks.it", arguments, argv) == 4
    assert not joined
    assert [env["JAX_PROCESS_ID"] for _, env in started] == list("0123")
    for process, (command, _) in enumerate(started):
        assert command[:4] == [f"on {process}", sys.executable, "-m", "benchmarks.it"]
        there, others = parser().parse_known_args(command[4:])
        assert (there.join, there.rows, others) == (True, 5, rest)
        assert namespaces.run_or_join("benchmarks.it", there, command[4:]) is None
    assert (len(started), len(joined)) == (4, 4)


def test_without_hosts_it_measures_here(monkeypatch):
    monkeypatch.setattr(namespaces, "_on_hosts", lambda *_: pytest.fail("it started processes"))
    monkeypatch.setattr(namespaces, "_join", lambda: pytest.fail("it joined a job"))
    assert namespaces.run_or_join("benchmarks.it", parsed([]), []) is None


def test_an_error_is_a_line_and_a_status(monkeypatch, capsys):
    def fail(*_):
        raise JaxringError("needs root")

    monkeypatch.setattr(namespaces, "_on_hosts", fail)
    argv = ["--hosts", "2"]
    assert namespaces.run_or_join("benchmarks.it", parsed(argv), argv) == 1
    assert capsys.readouterr().err == "benchmarks.it: needs root\n"
