"""What `jaxring tune --ranks` measures hosts by; tests/hosts/test_measured_order.py has it between hosts."""

from __future__ import annotations

import time

import pytest

from jaxring.errors import JoinError
from jaxring.settings import load
from jaxring.world import probing
from tests.world.world_fakes import DirStore


@pytest.mark.parametrize(("told", "limit"), [("5", 5.0), ("1000", probing.PROBE_S)])
def test_a_peer_is_dialled_no_longer_than_the_error_says(told, limit, tmp_path, monkeypatch):
    given = []

    def connect(peer, own, secret, channel, timeout_s, deadline, *_):
        given.append((timeout_s, deadline - time.monotonic()))
        raise JoinError("no answer")

    monkeypatch.setattr(probing, "connect", connect)
    settings = load({"JAXRING_JOIN_TIMEOUT": told})
    with (
        probing.Prober(DirStore(tmp_path), 0, 2, "", settings) as one,
        probing.Prober(DirStore(tmp_path), 1, 2, "", settings),
        pytest.raises(JoinError, match="no answer"),
    ):
        one.probe(1)
    ((named, left),) = given
    assert named == limit
    assert left <= limit
