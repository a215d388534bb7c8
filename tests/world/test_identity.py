"""What processes publish about themselves, and how hosts are told apart."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from jaxring.world.identity import MAX_INFO_BYTES, ProcessInfo, describe_self, host_id, processors

INFO = describe_self(1, [("lo", "127.0.0.1", 4242), ("eth0", "2001:db8::1", 4243)], "ALGO=ring")


def test_round_trip():
    assert ProcessInfo.from_json(INFO.to_json()) == INFO


def test_tokens_are_new_each_time():
    assert describe_self(1, list(INFO.addresses), "").token != INFO.token


def test_a_host_id_is_stable_and_can_be_set():
    assert host_id() == host_id() == INFO.host_id
    assert host_id("a") == host_id("a") != host_id("b") != host_id()
    assert len(host_id()) == 16


def test_processes_count_the_processors_that_they_share_once():
    assert processors([INFO]) == len(os.sched_getaffinity(0))
    some = [dataclasses.replace(INFO, processors=mask) for mask in ("3", "6", f"{1 << 8191:x}")]
    assert processors(some) == 4


def test_processes_of_containers_on_one_machine_may_share_processors():
    one = dataclasses.replace(INFO, processors="3")
    other = dataclasses.replace(one, host_id="another", processors="6")
    assert one.shares_processors(other)
    assert not one.shares_processors(dataclasses.replace(other, processors="c"))
    assert not one.shares_processors(dataclasses.replace(other, kernel="1"))
    unknown = dataclasses.replace(one, kernel="0")
    assert not unknown.shares_processors(unknown)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("index", -1),
        ("index", True),
        ("index", 1.0),
        ("index", 1 << 20),
        ("pid", 0),
        ("pid", "1"),
        ("hostname", "h" * 256),
        ("hostname", "a\nb"),
        ("host_id", None),
        ("token", ["x"]),
        ("addresses", []),
        ("addresses", [["lo", "127.0.0.1", 1]] * 65),
        ("addresses", [["lo", "evil.example", 1]]),
        ("addresses", [["lo", "127.0.0.1", 0]]),
        ("addresses", [["lo", "127.0.0.1"]]),
        ("processors", ""),
        ("processors", "-1"),
        ("processors", "0x1"),
        ("processors", "f" * 2049),
        ("processors", 3),
        ("kernel", ""),
        ("settings", 5),
        ("version", "v" * 65),
    ],
)
def test_a_bad_field_is_refused(field, value):
    raw = dataclasses.asdict(INFO) | {field: value}
    with pytest.raises(ValueError):
        ProcessInfo.from_json(json.dumps(raw).encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\xff\xfe", b"{}", b"[" * MAX_INFO_BYTES, b" " * (MAX_INFO_BYTES + 1), INFO.to_json()[:-1]],
)
def test_bytes_that_are_not_an_info_are_refused(data):
    with pytest.raises(ValueError):
        ProcessInfo.from_json(data)


def test_missing_and_unknown_fields_are_refused():
    raw = dataclasses.asdict(INFO)
    with pytest.raises(ValueError, match="extra"):
        ProcessInfo.from_json(json.dumps(raw | {"extra": 1}).encode())
    del raw["pid"]
    with pytest.raises(ValueError, match="pid"):
        ProcessInfo.from_json(json.dumps(raw).encode())
