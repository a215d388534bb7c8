"""Arrays that go between processes by a program each, or do not, the same on all. usage: worker_programs.py"""

from __future__ import annotations

import contextlib

import jax
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.resharding import outside_jit, rounds
from jaxring.resharding.exchange import SITE
from tests.resharding.reshard_checks import DEVICES, check, made, right

OVER = np.array(DEVICES)
GRID = OVER.reshape(jax.process_count(), -1)
# In as many calls any array has been moved often enough for a program.
OFTEN = 8
IN_ROUNDS = {("all_gather", "'process'"), ("ragged_all_to_all", "'process'")}


def by(devices, *spec):
    return NamedSharding(Mesh(devices, ("a", "b")[: devices.ndim]), P(*spec))


ROWS, COLUMNS, REVERSED = by(OVER, "a"), by(OVER, None, "a"), by(OVER[::-1], "a")


def numbers(side):
    return np.arange(side * side, dtype=np.float32).reshape(side, side)


@contextlib.contextmanager
def no_rounds():
    """Within it an array that goes in rounds is an error."""

    def refuse(arrays, *_):
        raise AssertionError(f"in rounds: {arrays}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "move", refuse)
        yield


def planned(before):
    """The collectives of arrays that have been planned since there were so many."""
    plans = [plan for plan in jaxring.plans()[before:] if plan.site == SITE]
    return {plan.collective for plan in plans if (plan.collective, plan.axes) not in IN_ROUNDS}


@contextlib.contextmanager
def no_programs():
    """Within it no program moves an array."""
    before = len(jaxring.plans())
    yield
    assert not planned(before)


BLOCKS, TRANSPOSED = by(OVER.reshape(2, -1), "a", "b"), by(OVER.reshape(-1, 2).T, "a", "b")
# The first process's devices keep what they have.
OTHERS_EXCHANGE = by(np.concatenate([OVER[: GRID.shape[1]], OVER[: GRID.shape[1] - 1 : -1]]), "a")
PAIRS = {
    "rows, reversed": ("permute", ROWS, REVERSED),
    "rows, moved on by one": ("permute", ROWS, by(np.roll(OVER, 1), "a")),
    "rows, others exchange": ("permute", ROWS, OTHERS_EXCHANGE),
    "grid, transposed": ("permute", BLOCKS, TRANSPOSED),
    "rows, columns": ("ragged_all_to_all", ROWS, COLUMNS),
    "blocks, columns": ("ragged_all_to_all", BLOCKS, by(OVER.reshape(2, -1), None, ("a", "b"))),
}


def often(comm):
    """Small arrays go by a program from a call on, the same in all processes, and in rounds before."""
    moved = 0
    for number, (name, (collective, source, target)) in enumerate(PAIRS.items(), 1):
        values = numbers(12 * len(DEVICES) * number)  # of another side each, so that each has to be planned
        leaf = (values, source, target)
        with no_programs():
            for turn in range(OFTEN - 1):
                minimum = check(comm, [leaf], 4 << 20, may_alias=turn % 2 == 0)
        if not minimum:
            continue  # with two processes none exchange where the first keeps what it has
        before = len(jaxring.plans())
        for may_alias in (False, True):
            with no_rounds():
                check(comm, [leaf], 4 << 20, may_alias)
        keeps_all = name == "rows, others exchange" and jax.process_index() == 0
        assert planned(before) == (set() if keeps_all else {collective}), name
        moved += 1
        # A process that does not remember: the others go in rounds with it.
        if jax.process_index() == 0:
            outside_jit._plan.cache_clear()
        with no_programs():
            check(comm, [leaf], 4 << 20)
    return moved


def large():
    """An array of many bytes goes by a program at once, also where only some of the processes may share memory."""
    values = np.arange(len(DEVICES) * (4 << 20), dtype=np.float32).reshape(len(DEVICES), -1)
    target = by(np.roll(OVER, GRID.shape[1]), "a")
    with no_rounds():
        result = jaxring.reshard(made(values, ROWS), target, may_alias=jax.process_index() == 0)
    right(result, values, target)


def trees(comm):
    """Of many arrays the first call compiles no program of an array."""
    found, listening = [], True
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: found.append(event) if listening and "backend_compile" in event else None
    )
    count = len(DEVICES)
    leaves = [(np.full((count * (64 + i), 1024), i, np.float32), ROWS, REVERSED) for i in range(12)]
    with no_programs():
        check(comm, leaves, 4 << 20)
    tree = [made(values, source) for values, source, _ in leaves]
    found.clear()
    with no_programs():
        jaxring.reshard(tree, REVERSED)
    assert not found
    listening = False


@contextlib.contextmanager
def at_once():
    """Within it a program moves every array that it serves, from the first call on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outside_jit, "_WORTH_A_PROGRAM", 0)
        yield


def unusual():
    """Other layouts and memory kinds, and meshes of `jax.set_mesh`."""
    values = numbers(24 * len(DEVICES))
    another = Mesh(OVER.reshape(2, -1)[:, ::-1], ("u", "v"))
    for source, target in ((ROWS, REVERSED), (ROWS, COLUMNS), (BLOCKS, TRANSPOSED), (ROWS, by(OVER))):
        x = made(values, source)
        with jax.set_mesh(another):
            right(jaxring.reshard(x, target), values, target)
        other = jax.device_put(x, Format(Layout((1, 0)), source))
        for may_alias in (False, True):
            y = jaxring.reshard(other, target, may_alias=may_alias)
            right(y, values, target)
            for shard in jax.jit(lambda a: a * 1)(y).addressable_shards:
                np.testing.assert_array_equal(shard.data, values[shard.index])
    for kind in ("pinned_host", "unpinned_host"):
        rows = ROWS.with_memory_kind(kind)
        for target in (REVERSED, COLUMNS, by(OVER)):
            there = target.with_memory_kind(kind)
            for source, to in ((rows, target), (ROWS, there), (rows, there)):
                right(jaxring.reshard(made(values, source), to), values, to)


def without_a_part():
    """A jax.Array of which a process has nothing serves as well as a jax.ShapeDtypeStruct."""
    few = OVER[: GRID.shape[1]]
    values, source = numbers(len(DEVICES) * 8), by(few, "a")
    x = jax.make_array_from_callback(values.shape, source, lambda index: values[index], dtype=values.dtype)
    for to in (by(few[::-1], "a"), REVERSED, by(OVER[-1:], "a")):
        right(jaxring.reshard(x, to), values, to)
    # In a tree of which another array travels, by a program in which this process has no part.
    if jax.process_count() > 2:
        pair = OVER[: 2 * GRID.shape[1]]
        source, to = by(pair, "a"), by(pair[::-1], "a")
        x = jax.make_array_from_callback(values.shape, source, lambda index: values[index], dtype=values.dtype)
        for y, target in zip(jaxring.reshard([x, made(values, ROWS)], [to, REVERSED]), (to, REVERSED), strict=True):
            right(y, values, target)


def main():
    comm = jaxring.Communicator()
    print("programs", often(comm))
    trees(comm)
    large()
    for way in (contextlib.nullcontext, at_once):
        with way():
            unusual()
            without_a_part()
    print("right")


if __name__ == "__main__":
    main()
