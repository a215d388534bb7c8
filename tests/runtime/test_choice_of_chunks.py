"""A chunk of a pipeline goes by the algorithm that moves all chunks fastest, unless the call asks for one."""

from __future__ import annotations

import dataclasses

import pytest

from jaxring.runtime import choice
from jaxring.runtime.call import CallSpec
from jaxring.runtime.choice import choose
from jaxring.settings import load
from tests.runtime.chosen_call import chosen_call

HOSTS = (0, 1, 2, 3)
CHUNK = chosen_call("all_gather", HOSTS)


def test_a_chunk_goes_by_the_algorithm_of_all_chunks():
    alone = choose(CHUNK, HOSTS, HOSTS)
    whole = choose(dataclasses.replace(CHUNK, block=CHUNK.block * 16), HOSTS, HOSTS)
    assert alone.algorithm != whole.algorithm  # else this test says nothing
    chunk = choose(dataclasses.replace(CHUNK, parts=16), HOSTS, HOSTS)
    assert chunk.algorithm == whole.algorithm
    # All else is that of a call of the chunk's size.
    asked = choose(dataclasses.replace(CHUNK, algorithm=whole.algorithm), HOSTS, HOSTS)
    assert (chunk.protocol, chunk.channels, chunk.candidates) == (asked.protocol, asked.channels, asked.candidates)
    assert chunk.reason == f"as for 16 chunks at once, {whole.reason}; for each of them, {asked.why}"


def test_the_algorithm_that_a_call_asks_for_holds_for_its_chunks():
    spec = dataclasses.replace(CHUNK, algorithm="direct")
    assert choose(dataclasses.replace(spec, parts=16), HOSTS, HOSTS) == choose(spec, HOSTS, HOSTS)


def test_chunks_go_by_the_protocol_that_a_call_asks_for_and_by_the_algorithm_of_all():
    whole = choose(dataclasses.replace(CHUNK, block=CHUNK.block * 16), HOSTS, HOSTS)
    chunk = choose(dataclasses.replace(CHUNK, protocol="simple", parts=16), HOSTS, HOSTS)
    assert (chunk.algorithm, chunk.protocol) == (whole.algorithm, "simple")
    assert chunk.reason.startswith("protocol 'simple' asked for; as for 16 chunks at once, ")


def test_a_protocol_that_carries_a_chunk_but_not_all_at_once():
    small = dataclasses.replace(CHUNK, block=1024, protocol="ll")
    with pytest.raises(ValueError, match="'ll' carries messages of at most"):
        choose(dataclasses.replace(small, block=1024 * 16), HOSTS, HOSTS)
    assert choose(dataclasses.replace(small, parts=16), HOSTS, HOSTS).protocol == "ll"


def test_a_setting_holds_for_chunks(monkeypatch):
    monkeypatch.setattr(choice, "settings", lambda: load({"JAXRING_ALGO": "^ring"}))
    chunk = choice.choose(dataclasses.replace(CHUNK, parts=16), HOSTS, HOSTS)
    assert chunk.algorithm != "ring"
    assert "with JAXRING_ALGO=^ring" in chunk.reason


def test_the_setting_of_a_protocol_holds_for_chunks_that_it_serves(monkeypatch):
    monkeypatch.setattr(choice, "settings", lambda: load({"JAXRING_PROTO": "ll"}))
    chunk = dataclasses.replace(CHUNK, block=1024, parts=16)
    apart = choice.choose(chunk, HOSTS, HOSTS)
    assert apart.protocol == "ll"
    assert "leaves nothing" not in apart.reason
    assert "for each of them, with JAXRING_PROTO=ll, " in apart.reason
    # Among ranks that share memory, all chunks would go by memory, which a chunk does not with this setting.
    near = choice.choose(chunk, (0,) * 4, (0,) * 4)
    assert near.protocol == "ll"
    assert "leaves nothing" not in near.reason


def test_the_text_of_a_call_without_chunks_is_as_before():
    assert "parts" not in CHUNK.to_json()
    chunk = dataclasses.replace(CHUNK, parts=16)
    assert CallSpec.from_json(chunk.to_json()) == chunk
