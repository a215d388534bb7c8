"""Profiles: what is read, what is refused, and how the tuner's choices follow from them."""

from __future__ import annotations

import dataclasses

import pytest

from jaxring.plan import cost
from jaxring.plan.choice import figures
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.profile import Link, Measured
from jaxring.plan.profile_file import COMMODITY, parse
from jaxring.plan.tuner import choose

APART = (0, 1, 2, 3)
HOST = (0, 0, 0, 0)
MEASURED = Measured("all_reduce", "ring", "simple", 4, 1, 1, (1024, 4096), (100.0, 400.0))


def test_a_profile_is_read_as_it_was_written():
    profile = dataclasses.replace(COMMODITY, kind='a "kind"', measured=(MEASURED,))
    assert parse(profile.text()) == profile
    assert parse(profile.text()).digest == profile.digest != COMMODITY.digest


TEXT = dataclasses.replace(COMMODITY, measured=(MEASURED,)).text()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (TEXT.replace("[shm]", "[shared]"), "shm is no table"),
        (TEXT.replace("overhead", "overheat"), "fields of memory differ: 'overhead', 'overheat'"),
        (TEXT.replace("alpha = 1.0", "alpha = -1.0", 1), "memory.alpha is not a number from 0"),
        (TEXT.replace("alpha = 1.0", "alpha = nan", 1), "memory.alpha is not a number"),
        (TEXT.replace("alpha = 1.0", "alpha = true", 1), "memory.alpha is not a number"),
        (TEXT.replace("cache_ranks = 8", "cache_ranks = 8.5"), "constants.cache_ranks is not an integer"),
        (TEXT.replace('"ring"', "7"), r"measured\[0\].algorithm is no text"),
        (TEXT.replace('"simple"', '"slow"'), r"measured\[0\].protocol is none of memory, simple"),
        (TEXT.replace("[1024, 4096]", "[4096, 1024]"), "do not ascend"),
        (TEXT.replace("[1024, 4096]", "[1024]"), "not as many times as sizes"),
        (TEXT.replace("100.0, ", "0.0, "), "times that are not above 0"),
        (TEXT + "\n[extra]\n", "a profile has no 'extra'"),
        ("kind = ", "Invalid value"),
        ("#" * (1 << 20) + "\n", "no profile needs"),
    ],
)
def test_a_wrong_profile_is_refused_by_the_field(wrong, said):
    with pytest.raises(ValueError, match=said):
        parse(wrong)


def test_times_between_sizes_lie_on_a_line_in_both_logarithms():
    assert [MEASURED.at(n) for n in (1024, 2048, 4096)] == [100.0, 200.0, 400.0]
    assert MEASURED.at(1023) is None
    assert MEASURED.at(4097) is None


def test_what_a_reduce_scatter_makes_of_its_results_leaves_the_choice_to_measurements():
    measured = dataclasses.replace(MEASURED, collective="reduce_scatter")
    profile = dataclasses.replace(COMMODITY, measured=(measured,))
    one, two = (
        choose("reduce_scatter", APART, HOST, 4096, "bfloat16", "ring", "simple", profile=profile, spread=spread)
        for spread in (1.0, 2.0)
    )
    assert one == two
    assert one.candidates == [("ring/simple", 400.0)]


def candidates(profile):
    return choose("all_reduce", APART, HOST, 4096, "float32", profile=profile)


def test_measurements_decide_where_all_candidates_have_been_measured():
    free = candidates(COMMODITY)
    names = [name for name, _ in free.candidates]
    slowest_first = [
        Measured("all_reduce", *name.split("/"), 4, 1, 1, (4096,), (1000.0 - 10 * place,))
        for place, name in enumerate(names)
    ]
    one_missing = candidates(dataclasses.replace(COMMODITY, measured=tuple(slowest_first[1:])))
    assert (one_missing.algorithm, one_missing.candidates) == (free.algorithm, free.candidates)
    assert one_missing.details[names[1]].measured == 990.0
    measured = candidates(dataclasses.replace(COMMODITY, measured=tuple(slowest_first)))
    assert [name for name, _ in measured.candidates] == names[::-1]
    assert "fastest" in measured.reason
    assert "as measured on this kind of machine" in measured.reason
    assert "measured" not in free.reason


def test_a_machine_with_enough_processors_chooses_other_algorithms():
    """64 processors of one socket: a message between processes takes no switch, and caches hold much more."""
    many = dataclasses.replace(
        COMMODITY,
        kind="64 cores",
        shm=Link(0.6, 0.15, 0.00003),
        constants=dataclasses.replace(COMMODITY.constants, switch=0.0, cache_bytes=1 << 30, cache_ranks=64),
    )
    ranks = tuple(range(16))
    here, there = (
        [choose("all_reduce", ranks, (0,) * 16, n, "float32", processors=p, profile=profile).algorithm for n in SIZES]
        for profile, p in ((COMMODITY, 2), (many, 64))
    )
    # A tree is deep and sends few messages. Where a message takes a switch of processes, depth costs too much.
    assert "tree" not in here
    assert "tree" in there
    assert here[0] == there[0] == "oneshot"


SIZES = [4, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20]


def test_times_have_no_exponent():
    assert [figures(us) for us in (2.0012, 999.96, 67176.9, 4.2e9)] == ["2.001", "1000", "67,177", "4,200,000,000"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("places", "hosts"),
    [((0,) * 4, (0,) * 4), ((0, 0, 1, 1), (0,) * 4), (APART, HOST), (APART, APART), ((0, 0, 1, 1), (0, 0, 1, 1))],
)
def test_nothing_is_predicted_to_be_faster_than_light(collective, places, hosts):
    for nbytes in SIZES:
        choice = choose(collective, places, hosts, nbytes, "float32")
        assert 0 < choice.light <= choice.candidates[0][1]
        for name, us in choice.candidates:
            price = choice.details[name].predicted
            assert price.us == us
            assert getattr(price, price.limit) == max(dataclasses.astuple(price))
        assert f"predicted {figures(choice.candidates[0][1])} us, limited by " in choice.prediction
        assert choice.prediction.endswith(f" {choice.light / choice.candidates[0][1]:.0%} of the speed of light")


def test_the_bound_is_the_bytes_that_cross():
    four = cost.Topology.of(APART, APART)
    beta = COMMODITY.tcp.beta
    mega = 1 << 20
    for collective, crossing in {
        "all_reduce": 2 * mega * 3 / 4,
        "reduce_scatter": mega * 3 / 4,
        "all_gather": 3 * mega,
        "broadcast": mega,
        "scatter": mega * 3 / 4,
        "all_to_all": mega * 3 / 4,
        "permute": mega,
    }.items():
        assert cost.light_us(collective, four, mega, COMMODITY) == pytest.approx(crossing * beta), collective
