"""A benchmark's command starts itself on hosts with all of its arguments, and measures where it was started so."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import namespaces
from jaxring.errors import JaxringError


def parsed(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--devices", type=int)
    namespaces.add_arguments(parser, rate="1gbit")
    return parser.parse_args(argv)


def test_the_command_on_each_host_has_all_arguments(monkeypatch):
    started, joined = [], []
    monkeypatch.setattr(namespaces, "_on_hosts", lambda *args: started.append(args) or 3)
    monkeypatch.setattr(namespaces, "_join", lambda: joined.append(True))
    argv = ["--rows", "5", "--hosts", "4", "--devices", "2"]
    assert namespaces.run_or_join("benchmarks.it", parsed(argv), argv) == 3
    assert started == [("benchmarks.it", 4, "1gbit", argv, 600.0, 2)]
    assert not joined
    there = [*started[0][3], "--join"]
    assert parsed(there).rows == 5
    assert namespaces.run_or_join("benchmarks.it", parsed(there), there) is None
    assert (len(started), joined) == (1, [True])


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
