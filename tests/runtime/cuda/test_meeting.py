"""How processes that share GPU memory meet before any of them gets its plan: by entries in the job's store."""

from __future__ import annotations

import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxring.errors import JoinError
from jaxring.runtime.cuda.rank_group import Group, GroupRank, Shape
from tests.world.world_fakes import DirStore


def group_of(process: int, store: DirStore) -> Group:
    made = types.SimpleNamespace(local=lambda rank: rank == process, members=lambda rank: {0, 1, 2} - {rank})
    native = types.SimpleNamespace(
        Location=types.SimpleNamespace, Rank=types.SimpleNamespace, communicator=lambda *spec: made
    )
    ranks = [GroupRank(p, 0 if p == process else -1, 0, f"rank {p}") for p in range(3)]
    return Group(native, "group", ranks, Shape(1, (), 0), store, 60.0)


def test_nothing_of_a_meeting_is_left_in_the_store(tmp_path):
    store, shared = DirStore(tmp_path), []
    groups = [group_of(process, store) for process in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for key in ("a", "b", "a"):
            list(pool.map(lambda group, key=key: group.meet(key, lambda: shared.append(key)), groups))
    assert sorted(shared) == ["a"] * 3 + ["b"] * 3
    assert not store.list("jaxring/")


def test_who_cannot_share_its_buffers_says_so_and_may_come_again(tmp_path):
    store = DirStore(tmp_path)
    groups = [group_of(process, store) for process in range(3)]

    def fails() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(JoinError, match="no memory"):
        groups[0].meet("a", fails)
    for group in groups[1:]:
        with pytest.raises(JoinError, match="no memory"):
            group.meet("a", lambda: None)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda group: group.meet("a", lambda: None), groups))
    assert not store.list("jaxring/")
