"""Against numbers that others have published."""

from __future__ import annotations

import pytest

from jaxring.plan.schedule import Spec
from jaxring.simulate.clusters import load
from jaxring.simulate.model import Model
from jaxring.simulate.run import simulate
from tests.simulate.support import run, star


def test_astra_sim_hgx_h100():
    """ASTRA-sim, examples/network/analytical/HGX-H100-validated.yml: a switch, 8 NPUs, 400 GB/s, 936.25 ns twice; and
    inputs/network/hgx_h100_8gpu.yml: the most that was measured of all-reduce is 370.67 GB/s of bus bandwidth."""
    network = star(8, speed=400.0, latency=0.93625)
    for nbytes in (1 << 20, 64 << 20, 128 << 20):
        played, _ = run(Spec("all_reduce", 8, "ring"), nbytes, network, Model(tile_bytes=nbytes))
        assert played.time_us == pytest.approx(14 * (nbytes / 8 / 400e3 + 2 * 0.93625), rel=1e-9)
    measured = max(
        simulate(load("hgx-h100"), 1, "all_reduce", nbytes, "ring").bus_gbs for nbytes in (256 << 20, 1 << 30)
    )
    assert measured == pytest.approx(370.67, rel=0.05)
