"""The slices in which data goes through switches that reduce: their sizes are NCCL's, and what their copies take."""

from __future__ import annotations

import pytest

from jaxring.simulate.clusters import load
from jaxring.simulate.links.multicast_slices import copying_us, slice_bytes
from jaxring.simulate.run import simulate

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (1 * MIB, 1 * MIB),  # chunks of 16 KiB, of which 128 hold more
        (8 * MIB - 1, 2 * MIB),
        (8 * MIB, 4 * MIB),
        (64 * MIB - 1, 4 * MIB),
        (64 * MIB, 8 * MIB),
        (1024 * MIB - 1, 8 * MIB),
        (1024 * MIB, 16 * MIB),
    ],
)
def test_chunks_grow_with_the_data_as_nccl_s_do(nbytes, expected):
    assert slice_bytes(nbytes, 16, 8) == expected


def test_an_all_reduce_copies_before_and_after_and_others_once():
    both = copying_us("all_reduce", 16 * MIB, 16, 8, 100.0)
    assert both == pytest.approx(0.55 * 2 * 100.0 / 4)
    for collective in ("reduce_scatter", "all_gather"):
        assert copying_us(collective, 16 * MIB, 16, 8, 100.0) == pytest.approx(both / 2)


@pytest.mark.parametrize("times", [1, 4])
def test_each_of_several_in_a_row_copies(times):
    once = simulate(load("hgx-h200"), 1, "all_reduce", 16 * MIB, "nvls").time_us
    assert simulate(load("hgx-h200"), 1, "all_reduce", 16 * MIB, "nvls", times=times).time_us == pytest.approx(once)
