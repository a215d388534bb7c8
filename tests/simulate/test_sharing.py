"""Links are shared max-min fairly: every flow has a bottleneck, on which no flow is faster."""

from __future__ import annotations

import random

import pytest

from jaxring.simulate.links.sharing import Flows


def test_two_flows_halve_a_link_and_the_third_takes_the_rest():
    flows = Flows([10.0, 4.0])
    a, b = flows.begin((0,), 100.0, 0.0), flows.begin((0, 1), 100.0, 0.0)
    c = flows.begin((1,), 100.0, 0.0)
    ends = {flow: end for end, flow in flows.settle(0.0)}
    assert (flows.rate[a], flows.rate[b], flows.rate[c]) == (8.0, 2.0, 2.0)
    assert ends == {a: 12.5, b: 50.0, c: 50.0}
    flows.end(c)
    flows.settle(10.0)
    assert (flows.rate[a], flows.rate[b]) == (6.0, 4.0)
    assert flows.left[a] == pytest.approx(20.0)


@pytest.mark.parametrize("seed", range(20))
def test_every_flow_has_a_bottleneck(seed):
    draw = random.Random(seed)
    links = 12
    flows = Flows([draw.choice([1.0, 2.0, 5.0, 7.5]) for _ in range(links)])
    alive: list[int] = []
    now = 0.0
    for _ in range(60):
        now += 0.01
        if alive and draw.random() < 0.35:
            flows.end(alive.pop(draw.randrange(len(alive))))
        else:
            alive.append(flows.begin(tuple(draw.sample(range(links), draw.randint(1, 4))), 1e6, now))
        flows.settle(now)
        used = [0.0] * links
        for flow in alive:
            for link in flows.route[flow]:
                used[link] += flows.rate[flow]
        assert all(total <= speed * (1 + 1e-9) for total, speed in zip(used, flows.speed, strict=True))
        for flow in alive:
            assert any(
                used[link] >= flows.speed[link] * (1 - 1e-9)
                and all(flows.rate[other] <= flows.rate[flow] * (1 + 1e-9) for other in flows.on[link])
                for link in flows.route[flow]
            )


def test_a_broken_link_has_no_end():
    flows = Flows([8.0])
    flow = flows.begin((0,), 80.0, 0.0)
    assert flows.settle(0.0) == [(10.0, flow)]
    flows.limit(0, 0.0)
    assert flows.settle(5.0) == []
    flows.limit(0, 4.0)
    assert flows.settle(20.0) == [(30.0, flow)]
