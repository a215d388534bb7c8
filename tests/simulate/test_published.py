"""Against numbers that others have published."""

from __future__ import annotations

import pytest

from jaxring.plan.schedule import Spec
from jaxring.simulate.clusters import load
from jaxring.simulate.model import Model
from jaxring.simulate.run import simulate
from tests.simulate.support import run, star
from tests.topology.formats.test_astra_sim import HGX_H100


def test_astra_sim_hgx_h100(tmp_path):
    """ASTRA-sim, examples/network/analytical/HGX-H100-validated.yml: a switch, 8 NPUs, 400 GB/s (of 2^30 bytes),
    936.25 ns twice; and inputs/network/hgx_h100_8gpu.yml: the most that was measured of all-reduce is 370.67 GB/s of
    bus bandwidth."""
    gigabytes = 400.0 * (1 << 30) / 1e9
    network = star(8, speed=gigabytes, latency=0.93625)
    path = tmp_path / "HGX-H100-validated.yml"
    path.write_text(HGX_H100)
    for nbytes in (1 << 20, 64 << 20, 128 << 20):
        played, _ = run(Spec("all_reduce", 8, "ring"), nbytes, network, Model(tile_bytes=nbytes))
        assert played.time_us == pytest.approx(14 * (nbytes / 8 / (gigabytes * 1000) + 2 * 0.93625), rel=1e-9)
        assert simulate(load(str(path)), 1, "all_reduce", nbytes, "ring").time_us == pytest.approx(played.time_us)
    measured = max(
        simulate(load("hgx-h100"), 1, "all_reduce", nbytes, "ring").bus_gbs for nbytes in (256 << 20, 1 << 30)
    )
    assert measured == pytest.approx(370.67, rel=0.05)


# NCCL 2.20 on 8 H200, all-reduce: bytes and GB/s of bus bandwidth.
@pytest.mark.parametrize(
    ("nbytes", "published"), [(1 << 20, 53), (16 << 20, 240), (256 << 20, 432), (1 << 30, 468), (8 << 30, 480)]
)
def test_nccl_with_multicast_on_8_h200(nbytes, published):
    assert simulate(load("hgx-h200"), 1, "all_reduce", nbytes, "nvls").bus_gbs == pytest.approx(published, rel=0.15)


def test_nccl_small_on_8_h100():
    """NCCL's all-reduce of 1 to 32 KiB on 8 H100 takes 32 us."""
    for nbytes in (1 << 10, 32 << 10):
        assert simulate(load("hgx-h100"), 1, "all_reduce", nbytes, "nvls").time_us == pytest.approx(32, rel=0.15)


def test_a_ring_on_8_h200():
    """A plain ring tops out near 370 GB/s."""
    assert simulate(load("hgx-h200"), 1, "all_reduce", 1 << 30, "ring").bus_gbs == pytest.approx(370, rel=0.05)


@pytest.mark.parametrize(
    "given", [("hgx-a100", 1, "all_reduce"), ("hgx-h100", 2, "all_reduce"), ("hgx-h100", 1, "all_to_all")]
)
def test_nvls_where_there_is_none(given):
    with pytest.raises(ValueError, match="nvls serves"):
        simulate(load(given[0]), given[1], given[2], 1 << 20, "nvls")


def test_multicast_takes_a_link_once():
    """A rank reads n chunks by n links up and one down, and writes by one up and n down: n + 1 chunks for each link."""
    run = simulate(load("hgx-h100"), 1, "all_reduce", 1 << 30, "nvls")
    cluster = load("hgx-h100")
    expected = (1 << 30) / 8 * 9 / (cluster.inside * 1000 * cluster.multicast)
    assert run.used["nvlink"][1] * run.time_us == pytest.approx(expected, rel=1e-6)
