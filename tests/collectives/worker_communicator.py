"""Every collective of a Communicator against NumPy, on one process of a job."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import jaxring
from jaxring import _native
from jaxring.world import launch

launch.initialize()
comm = jaxring.Communicator(timeout=60)
n, me = comm.size, comm.rank
assert n == 3
for dtype in (np.float32, np.int64, ml_dtypes.bfloat16):
    for count in (1, 3000):
        rows = [np.array((np.arange(n * count) + rank) % 5, dtype) for rank in range(n)]
        total = np.array(sum(row.astype(np.float64) for row in rows), dtype)
        mine = rows[me]
        blocks = [row.reshape(n, count) for row in rows]
        for _ in range(3):
            assert np.array_equal(comm.all_reduce(mine), total)
            assert np.array_equal(comm.reduce_scatter(blocks[me]), total.reshape(n, count)[me])
            assert np.array_equal(comm.all_gather(mine), np.stack(rows))
            assert np.array_equal(comm.all_to_all(blocks[me]), np.stack([block[me] for block in blocks]))
            assert np.array_equal(comm.broadcast(mine, root=1), rows[1])
            assert np.array_equal(comm.permute(mine, [(0, 1), (1, 0)]), rows[1 - me] if me < 2 else 0 * mine)
        again = mine.copy()
        assert comm.all_reduce(again, again, op="max") is again
        assert np.array_equal(again, np.max(np.stack(rows).astype(np.float64), 0).astype(dtype))
# With both arrays given a call is found again by them: other arrays must not find it, nor these after a change.
x, out = np.full(5, me + 1, np.float32), np.zeros(5, np.float32)
for turn in range(3):
    x += turn
    assert comm.all_reduce(x, out) is out
    assert np.array_equal(out, np.full(5, 6 + 3 * sum(range(turn + 1))))
assert np.array_equal(comm.all_reduce(x, out, "max"), np.full(5, 6))
assert np.array_equal(comm.all_reduce(np.full(5, me, np.int32), out.view(np.int32)), np.full(5, 3))
assert np.array_equal(comm.all_reduce(np.ones((1, 5), np.float32), np.zeros((1, 5), np.float32)), np.full((1, 5), 3))
assert np.array_equal(comm.broadcast(x, out, 2), np.full(5, 6))
assert np.array_equal(comm.broadcast(x, out, 0), np.full(5, 4))
for count in range(1, 12):  # more shapes than are remembered
    for _ in range(2):
        assert np.array_equal(comm.all_reduce(np.full(count, me), np.zeros(count, int)), np.full(count, 3))
wide = np.zeros((5, 2), np.float32)
assert np.array_equal(comm.all_reduce(x, out), np.full(5, 15))
for strided in ((wide[:, 0], out), (x, wide[:, 0])):
    with pytest.raises(ValueError, match="not C-contiguous"):
        comm.all_reduce(*strided)
constant = np.zeros(5, np.float32)
constant.flags.writeable = False
with pytest.raises(ValueError, match="read-only"):
    comm.all_reduce(x, constant)
assert not wide.any()
assert not constant.any()
# A call that is found by its arrays and root is one that was checked; whatever is no rank is told, not taken for 0.
for root in (0, 1, 2):
    for same in (root, np.int64(root), np.uint8(root), np.array(root), np.int64(root)):
        assert np.array_equal(comm.broadcast(x, root=same), np.full(5, 4 + root)), same
        assert np.array_equal(comm.broadcast(x, out, same), np.full(5, 4 + root)), same
for bad in (5, 3, -1, np.int64(3), np.int8(-1)):
    with pytest.raises(ValueError, match=rf"broadcast: root={bad} is no rank; there are ranks 0\.\.2"):
        comm.broadcast(x, out, bad)
for bad in (7.9, 1.0, np.float32(1), None, "1", "sum", [1], np.array([1])):
    for result in (out, None):
        with pytest.raises(TypeError, match="broadcast: root must be an integer, not "):
            comm.broadcast(x, result, bad)
for bad in (None, 0, np.int64(1), ("sum",)):
    for call in (comm.all_reduce, comm.reduce_scatter):
        with pytest.raises(TypeError, match="op must be the name of a reduction, not "):
            call(np.zeros(3), op=bad)
with pytest.raises(ValueError, match="there is no reduction 'add'"):
    comm.all_reduce(x, out, "add")
for pairs, error, words in (
    ([(0, 1.9)], TypeError, r"a target must be an integer, not 1\.9"),
    ([(0, 3)], ValueError, r"names target 3, but the communicator has ranks 0\.\.2"),
    ([(-1, 0)], ValueError, "names source -1"),
    ([(0, 1), (2, 1)], ValueError, "repeats target 1"),
):
    with pytest.raises(error, match=words):
        comm.permute(x, pairs, out)
assert np.array_equal(comm.permute(x, [(np.int64(0), np.int32(1))]), (4 if me == 1 else 0) * np.ones(5))
for bad, error in ((-1, ValueError), (0, ValueError), (np.nan, ValueError), (np.inf, ValueError), ("8", TypeError)):
    with pytest.raises(error, match="timeout must be a "):
        jaxring.Communicator(timeout=bad)
odd = np.zeros(21, np.uint8)[1:].view(np.float32)
for operand, error, words in (
    ([1.0, 2.0], TypeError, "must be a NumPy array, not list"),
    (np.ma.masked_array(np.zeros(5, np.float32)), TypeError, "masked"),
    (odd, ValueError, "not aligned"),
):
    with pytest.raises(error, match=words):
        comm.all_reduce(operand, out)
    with pytest.raises(TypeError if operand is not odd else ValueError, match=words):
        comm.all_reduce(x[: len(operand)], operand)
with pytest.raises(TypeError, match=r"of the other byte order; convert by x\.astype\('float32'\)"):
    comm.all_reduce(np.ones(5, ">f4"))
with pytest.raises(ValueError, match="one block for each of the 3 ranks"):
    comm.all_to_all(np.zeros(4))
with pytest.raises(TypeError, match="given for it is float64"):
    comm.all_reduce(np.zeros(4, np.float32), np.zeros(4))
with pytest.raises(jaxring.JaxringError, match="do not fit the plan"):
    comm.all_reduce(np.zeros(4), np.zeros(5))
with pytest.raises(
    jaxring.JaxringError, match=r"operand of rank 1 \(process 1 on .*\) holds NaN, first at element 2\."
):
    comm.all_reduce(np.array([0, 1, np.nan if me == 1 else 2], np.float32))
counted = _native.counters()
assert counted["injected_faults"] > 10
assert counted["stashed_bytes"] == counted["unexpected_bytes"]  # the former name
if me == 0:
    print("all as NumPy has it")
