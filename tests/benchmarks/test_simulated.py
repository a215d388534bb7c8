"""The half of `benchmarks.simulated` that simulates."""

from __future__ import annotations

import pytest

from benchmarks.simulated import ALGORITHMS, GOODPUT, Compared, cluster, fitted, row, simulated_us


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_sizes_take_what_the_link_takes(algorithm):
    hosts, nbytes = 4, 64 << 20
    # Bytes that leave a host: of an all-reduce 2(n-1)/n of the vector; of all-to-all what is for other hosts.
    leaves = nbytes * 2 * 3 / 4 if algorithm != "pxn" else 2 * nbytes * 3 / 4
    least = leaves / (GOODPUT * 1000)
    assert 0.999 * least < simulated_us(cluster(ALGORITHMS[algorithm][1], 0.0), hosts, algorithm, nbytes) < 2 * least


def test_the_latency_makes_small_ones_take_what_was_measured():
    small_us = 300.0
    assert simulated_us(cluster(1, small_us), 2, "ring", 4) == pytest.approx(small_us, rel=0.02)
    assert cluster(1, small_us).across_us["simple"] > cluster(1, 0.0).across_us["simple"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_1_kib_takes_what_was_measured_of_the_algorithm(algorithm):
    machine = fitted(cluster(ALGORITHMS[algorithm][1], 100.0), 8, algorithm, 1000.0)
    assert simulated_us(machine, 8, algorithm, 1024) == pytest.approx(1000.0, rel=0.01)
    assert machine.models["simple"].send_overhead > cluster(1, 100.0).models["simple"].send_overhead


def test_row():
    text = row(Compared(4, "ring", "all_reduce", 65536, 200.0, 230.0))
    assert text == "| 4 | ring all_reduce | 64 KiB | 200 | 230 | +15% |"


def test_only_what_leaves_a_host_is_shaped():
    network = cluster(1, 0.0).build(4, "simple")
    links = [network.fabric.links[link] for link, binding in enumerate(network.binding) if binding]
    shaped = [network.fabric.vertices[link.source].name for link in links if link.kind == "net"]
    assert shaped == [f"h{host}n0" for host in range(4)]
