"""Profiles of kinds of machines: where they lie, and what becomes of broken ones."""

from __future__ import annotations

import dataclasses

import pytest

from jaxring.plan.profile_file import COMMODITY
from jaxring.topology import calibration
from jaxring.topology.cache import machine_kind


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration.current.cache_clear()
    yield tmp_path
    calibration.current.cache_clear()


def test_without_a_file_it_is_the_built_in_one():
    assert calibration.current() is COMMODITY


def test_what_is_saved_is_used_by_this_kind_of_machine(cache):
    profile = dataclasses.replace(COMMODITY, kind=machine_kind(), source="a test")
    path = calibration.save(profile)
    assert path.is_relative_to(cache)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert calibration.current() == profile


def test_a_machine_s_kind_is_a_file_s_name():
    kind = machine_kind()
    assert kind
    assert set(kind) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")


def test_a_broken_file_is_warned_of_and_left(caplog):
    path = calibration.save(dataclasses.replace(COMMODITY, kind=machine_kind()))
    path.write_text(path.read_text().replace("[rdma]", "[infiniband]"))
    assert calibration.current() is COMMODITY
    assert f"{path} is not used: rdma is no table" in caplog.text
