"""JAXRING_NET=TLS: both ends of each connection get one key of their own, or the start fails with a reason."""

from __future__ import annotations

import concurrent.futures

import pytest

from jaxring.errors import JoinError


def keys(native):
    return [call[1] for call in native.named("key")]


def test_both_ends_of_each_connection_get_one_key_of_their_own(make_world):
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1", NET="TLS") for p in (0, 1))
    for channel in range(2):
        assert zero.link(1, channel) == "tcp"
    native1.wait_for("key", 3)
    ours, theirs = keys(native0), keys(native1)
    assert sorted(ours) == sorted(theirs)
    assert len({*ours}) == 3  # two links and the connection beside them
    assert {len(key) for key in ours} == {32}


def test_there_is_no_key_unless_it_is_asked_for(make_world):
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("key", 2)
    assert {*keys(native0), *keys(native1)} == {b""}


@pytest.mark.parametrize("kind", ["control", "data"])
def test_a_handshake_that_failed_can_be_tried_again(make_world, kind):
    """Also while the other side is not through with the failure."""
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1", NET="TLS") for p in (0, 1))
    if kind == "data":
        zero.link(1, 0)
        native1.wait_for("tcp_finish")
    native0.fail_handshakes = native1.fail_handshakes = 1
    native1.hold.clear()
    with pytest.raises(JoinError, match=r"process 1 .*: the TLS handshake failed"):
        zero.link(1, 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        again = pool.submit(zero.link, 1, 1)
        native1.hold.set()
        assert again.result(60) == "tcp"
    assert ("tcp_finish", 0, 1, False) in native1.wait_for("tcp_finish", 1 + (kind == "data"))


def test_processes_that_disagree_are_told(make_world):
    (zero, _), _ = make_world(0, NET="TLS"), make_world(1)
    with pytest.raises(JoinError, match=r"settings differ.*NET=\. .*NET=tls"):
        zero.link(1, 0)


def test_a_missing_library_is_told_at_the_start(make_world, monkeypatch):
    monkeypatch.setattr("tests.world.world_fakes.FakeNative.fail_tls", "there is no libssl", raising=False)
    with pytest.raises(JoinError, match="JAXRING_NET=TLS asks for TLS: there is no libssl"):
        make_world(0, NET="TLS")
