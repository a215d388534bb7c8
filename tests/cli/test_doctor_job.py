"""`jaxring doctor --job` behind a firewall: the table comes, whatever the number of processes."""

from __future__ import annotations

import types

from jaxring.cli import doctor_job
from tests.world.world_fakes import black_hole


def test_processes_that_there_is_no_time_for_are_said_to_be_untried(monkeypatch):
    monkeypatch.setattr(doctor_job, "_CONNECT_S", 0.2)
    monkeypatch.setattr(doctor_job, "_TRIES_S", 0.3)
    with black_hole() as (address, port):
        peer = types.SimpleNamespace(addresses=[("lo", address, port)] * 2)
        own = types.SimpleNamespace(addresses=[])
        world = types.SimpleNamespace(info=lambda _: peer, transport=lambda _: "tcp", own=own)
        links = doctor_job._try_all(world, 0, 100, {})
    assert [link.other for link in links] == list(range(1, 100))
    both = f"{address} port {port}: timed out; {address} port {port}: timed out"
    assert links[0].fault == both
    untried = f"{address} port {port}: not tried, others took 0.3 s"
    assert links[-1].fault == f"{untried}; {untried}"
