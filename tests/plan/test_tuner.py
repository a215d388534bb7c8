"""The choice of algorithm and protocol, and the formulas behind it held against real schedules."""

from __future__ import annotations

import functools

import pytest

from jaxring.plan import cost
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.candidate import chunk_bytes
from jaxring.plan.choice import choose_among
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.gpu.tuner import choose as choose_on_gpus
from jaxring.plan.schedule import Spec
from jaxring.plan.selection import Selection
from jaxring.plan.tuner import choose
from jaxring.plan.verify import verify

APART = tuple(range(8))
ONE_HOST = (0,) * 8
PAIRS = (0, 0, 1, 1, 2, 2, 3, 3)


@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_one_domain_goes_by_memory(collective: str) -> None:
    choice = choose(collective, (0,) * 8, ONE_HOST, 1 << 20, "float32")
    assert (choice.algorithm, choice.protocol) == ("direct", "memory")
    assert choice.reason == "all ranks share memory"


@pytest.mark.parametrize("name", ["direct", "hier_ring"])
def test_a_cast_narrows_what_is_written_to_memory(name: str) -> None:
    placement = (0,) * 8 if name == "direct" else PAIRS
    topology = cost.Topology.of(placement, ONE_HOST)
    whole, cast = (ALGORITHMS[name].shape_on("all_reduce", topology, 4000, spread=s).memory_bytes for s in (1.0, 0.5))
    assert (whole, cast) == (8000, 6000)


def test_small_is_ll_and_large_is_simple() -> None:
    for hosts in (ONE_HOST, APART):
        small = choose("all_reduce", APART, hosts, 1024, "float32")
        assert small.algorithm == "oneshot"
        assert small.protocol == "ll"
        large = choose("all_reduce", APART, hosts, 1 << 26, "float32")
        assert large.algorithm in ("ring", "halving_doubling")
        assert large.protocol == "simple"


def test_on_one_host_direct_leads_among_few_or_while_the_caches_hold_it() -> None:
    for n in (3, 4):
        for kibibytes in (64, 16384, 65536):
            assert choose("all_reduce", tuple(range(n)), (0,) * n, kibibytes << 10, "float32").algorithm == "direct"
    for n, last, first in [(5, 6144, 16384), (8, 4096, 8192), (16, 512, 2048)]:
        apart = tuple(range(n))
        for kibibytes in (64, last):
            assert choose("all_reduce", apart, (0,) * n, kibibytes << 10, "float32").algorithm == "direct"
        for kibibytes in (first, 65536):
            assert choose("all_reduce", apart, (0,) * n, kibibytes << 10, "float32").algorithm == "ring"
        assert choose("all_reduce", apart, apart, 1 << 20, "float32").algorithm in ("ring", "halving_doubling")
    assert choose("all_reduce", PAIRS, ONE_HOST, 1 << 20, "float32").algorithm == "hier_direct"


def test_where_processes_take_turns_on_processors_a_hop_costs_a_switch() -> None:
    pick = functools.partial(choose, "all_reduce", (0, 1, 2, 3), dtype="float32")
    for kibibytes, alone, crowded in [(4, "direct", "oneshot"), (16, "direct", "oneshot"), (64, "direct", "direct")]:
        here = functools.partial(pick, (0,) * 4, kibibytes << 10)
        for enough in (0, 4, 64):
            assert here(processors=enough).algorithm == alone
            assert "processors" not in here(processors=enough).reason
        assert here(processors=2).algorithm == crowded
        assert here(processors=2).reason.endswith("with 4 processes on 2 processors")
    # One process has all its ranks' memory, and hosts have processors of their own.
    for where, hosts in [((0,) * 4, (0,) * 4), ((0, 1, 2, 3), (0, 1, 2, 3))]:
        few = choose("all_reduce", where, hosts, 1 << 14, "float32", processors=1)
        assert few == choose("all_reduce", where, hosts, 1 << 14, "float32")


def test_large_messages_between_hosts_take_every_interface() -> None:
    for algorithm in ("ring", "direct", "halving_doubling"):
        for nbytes in (1 << 20, 1 << 26):
            kwargs = {"algorithm": algorithm, "protocol": "simple", "interfaces": 9}
            assert choose("all_reduce", (0, 1), (0, 1), nbytes, "float32", **kwargs).channels >= min(9, nbytes >> 17)
            within = choose("all_reduce", (0, 1), (0, 0), nbytes, "float32", **kwargs)
            kwargs["interfaces"] = 1
            assert within == choose("all_reduce", (0, 1), (0, 0), nbytes, "float32", **kwargs)
    assert choose("all_reduce", (0, 1), (0, 1), 1024, "float32", interfaces=9).channels == 1
    assert choose("all_reduce", (0, 1), (0, 1), 1 << 26, "float32", channels=(1, 3), interfaces=9).channels == 3


def test_long_messages_between_hosts_leave_in_turn() -> None:
    for algorithm, collective in [("halving_doubling", "all_reduce"), ("pat", "all_gather")]:
        pick = functools.partial(choose, collective, tuple(range(8)), dtype="float32", algorithm=algorithm)
        message = 64 << 10
        nbytes = message if collective == "all_gather" else 8 * message
        apart, together = tuple(range(8)), (0,) * 8
        short, long = (pick(apart, size, protocol="simple") for size in (nbytes - 32, nbytes))
        assert (short.channels, long.channels) == (8, 1)
        assert pick(together, nbytes, protocol="simple").channels == 8
        assert pick(apart, nbytes, protocol="simple", network="rdma").channels == 8
        assert pick(apart, nbytes, protocol="simple", channels=(2, 64)).channels == 2
        # The latency of 8 messages in turn passes while the others are sent.
        assert (
            abs(long.details[f"{algorithm}/simple"].predicted.us - short.details[f"{algorithm}/simple"].predicted.us)
            < 1
        )


def test_domains_of_several_ranks_compose() -> None:
    for nbytes in (256, 1 << 26):
        choice = choose("all_reduce", PAIRS, PAIRS, nbytes, "float32")
        assert choice.algorithm.startswith("hier_")
    small = functools.partial(choose, "all_to_all", PAIRS, PAIRS, 256, "float32")
    assert small().algorithm == "multileader"
    assert small(unwanted=("multileader",)).algorithm == "pxn"
    assert small(unwanted=("pxn", "multileader")).algorithm == "direct"
    # Other ranks' memory is farther than one's own, and domains that are not alike have no rails.
    assert choose("all_to_all", PAIRS, PAIRS, 1 << 26, "float32").algorithm == "direct"
    assert choose("all_to_all", (0, 0, 1), (0, 0, 1), 256, "float32").algorithm == "direct"


@pytest.mark.parametrize("collective", list(COLLECTIVES))
@pytest.mark.parametrize("nbytes", [0, 4, 5000, 1 << 22])
def test_every_choice_can_be_built(collective: str, nbytes: int) -> None:
    for placement, hosts in (((0,), (0,)), (APART, ONE_HOST), (PAIRS, PAIRS), ((0, 0, 0, 1, 2, 2), (0,) * 6)):
        choice = choose(collective, placement, hosts, nbytes, "bfloat16")
        n = len(placement)
        spec = Spec(collective, n, choice.algorithm, channels=choice.channels, placement=placement)
        verify(build(spec))
        if choice.protocol == "ll":
            assert chunk_bytes(spec, nbytes, "bfloat16") <= 4096
        prices = [us for _, us in choice.candidates]
        assert prices == sorted(prices)
        assert choice.candidates[0][0] == f"{choice.algorithm}/{choice.protocol}"
        assert choice == choose(collective, list(placement), list(hosts), nbytes, "bfloat16")


def test_wishes_are_met_or_refused_with_advice() -> None:
    choice = choose("all_reduce", APART, APART, 1024, "float32", algorithm="ring", protocol="simple")
    assert (choice.algorithm, choice.protocol) == ("ring", "simple")
    assert choice.reason.startswith("algorithm 'ring' and protocol 'simple' asked for")
    assert (
        choose("all_reduce", APART, APART, 1 << 20, "float32", algorithm="deterministic").algorithm == "deterministic"
    )
    assert choose("all_reduce", (0, 0), (0, 0), 64, "float32", protocol="simple").protocol == "simple"
    for arguments, wishes, advice in [
        (("all_reduce", APART, APART, 1 << 24), {"protocol": "ll"}, "at most 4096 bytes.*use protocol 'simple'"),
        (("all_reduce", APART, APART, 64), {"protocol": "ll", "ll_bytes": 0}, "use protocol 'simple'"),
        (("all_reduce", APART, APART, 64), {"protocol": "memory"}, "needs all ranks in one domain"),
        (("all_to_all", APART, APART, 64), {"algorithm": "ring"}, "does not serve all_to_all; use direct"),
        (("all_to_all", (0, 0), (0, 0), 64), {"protocol": "ll"}, "use protocol 'memory'"),
        (("all_reduce", (0, 0), (0, 0), 64), {"algorithm": "direct", "protocol": "ll"}, "sends no messages"),
        (("all_reduce", APART, APART, 64), {"algorithm": "star"}, "there is no algorithm"),
        (("all_reduce", APART, APART, 64), {"protocol": "ll128"}, "is for ranks on GPUs; on CPUs there are memory"),
        (("all_reduce", (0, 0), (0, 1), 64), {}, "must be on one host"),
    ]:
        with pytest.raises(ValueError, match=advice):
            choose(*arguments, "float32", **wishes)


def test_partial_results_count_in_accumulator_elements() -> None:
    ring, direct = (Spec("all_reduce", 4, name) for name in ("ring", "direct"))
    assert chunk_bytes(ring, 800, "float16") == 2 * chunk_bytes(direct, 800, "float16") == 400


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_messages_of_the_formulas_are_those_of_the_schedules(n: int) -> None:
    apart = tuple(range(n))
    topology = cost.Topology.of(apart, apart)
    for name, entry in ALGORITHMS.items():
        if entry.hierarchical or name == "tree":  # a tree's ranks differ; the formula takes an inner one
            continue
        for collective in entry.collectives - {"permute"}:
            report = verify(build(Spec(collective, n, name)))
            shape = entry.shape_on(collective, topology, 1 << 20)
            most = max(report.messages)
            if collective in ("broadcast", "reduce", "gather", "scatter"):
                # Rooted: a chain's ranks send one each; of direct, all of the root's.
                assert sum(report.messages) == n - 1
            elif name == "halving_doubling":
                assert most <= shape.messages * 2
            else:
                assert most == shape.messages


def test_settings_restrict_the_choice_where_they_leave_one() -> None:
    reduce = functools.partial(choose, "all_reduce", APART, APART, 1 << 20, "float32")
    some = choose_among(reduce, Selection(("tree", "ring")))
    assert some.algorithm in ("tree", "ring")
    assert some.reason.startswith("with JAXRING_ALGO=tree,ring, ")
    both = choose_among(reduce, Selection(("tree",)), Selection(("simple", "ll128")))
    assert (both.algorithm, both.protocol) == ("tree", "simple")
    # What a call asks for comes first, and a collective that none of them serves takes what serves it.
    asked = choose_among(reduce, Selection(("tree",)), algorithm="ring")
    assert asked.algorithm == "ring"
    assert asked.reason.startswith("algorithm 'ring' asked for; ring by")
    permute = functools.partial(choose, "permute", APART, APART, 1 << 20, "float32")
    none = choose_among(permute, Selection(("tree",)))
    assert none.algorithm == "direct"
    assert none.reason.startswith(
        "JAXRING_ALGO=tree leaves nothing that serves (algorithm 'tree' does not serve permute"
    )
    near = functools.partial(choose, "all_reduce", (0, 0), (0, 0), 64, "float32")
    assert choose_among(near, Selection(("ring",))).algorithm == "ring"
    # So many channels; with as many the schedules are right, too.
    for algorithm in ("ring", "tree", "direct", "halving_doubling", "oneshot"):
        many = reduce(algorithm=algorithm, protocol="simple", channels=(3, 5))
        assert 3 <= many.channels <= 5
        verify(build(Spec("all_reduce", len(APART), algorithm, channels=many.channels, placement=APART)))
    assert reduce(algorithm="ring", channels=(1, 1)).channels == 1


def test_an_exclusion_is_a_filter_and_no_request() -> None:
    for unwanted in ("pxn", "multileader", "direct", "deterministic", "tree"):
        # 2 processes of 2 ranks: what is left of the candidates is what was there before.
        pick = functools.partial(choose, "all_reduce", (0, 0, 1, 1), (0,) * 4, 1 << 20, "float32")
        choice = choose_among(pick, Selection(but=(unwanted,)))
        free = pick()
        assert (choice.algorithm, choice.candidates) == (free.algorithm, free.candidates)
        assert choice.reason == f"with JAXRING_ALGO=^{unwanted}, {free.reason}"
    gpus = functools.partial(choose_on_gpus, "all_reduce", (0, 0, 1, 1), 1 << 20, "float32", 8)
    assert choose_among(gpus, Selection(but=("pxn",))).candidates == gpus().candidates
    for pick in (functools.partial(choose, "all_reduce", (0, 0, 1, 1), (0,) * 4, 1024, "float32"), gpus):
        best = pick()
        other = choose_among(pick, Selection(but=(best.algorithm,)))
        kept = [each for each in best.candidates if not each[0].startswith(best.algorithm + "/")]
        assert other.candidates == kept
        kinds = {each[0].split("/")[1] for each in best.candidates}
        for kind in kinds if len(kinds) > 1 else ():
            rest = choose_among(pick, from_protocols=Selection(but=(kind,)))
            assert rest.candidates == [each for each in best.candidates if not each[0].endswith("/" + kind)]
            assert rest.reason.startswith(f"with JAXRING_PROTO=^{kind}, ")
        assert "asked for" not in other.reason
    # What ranks that share memory go by may be excluded, too. Where nothing is left the exclusion is not followed.
    near = functools.partial(choose, "all_reduce", (0, 0), (0, 0), 64, "float32")
    assert choose_among(near, Selection(but=("direct",))).algorithm != "direct"
    permute = functools.partial(choose, "permute", APART, APART, 64, "float32")
    alone = choose_among(permute, Selection(but=("direct",)))
    assert alone.algorithm == "direct"
    assert alone.reason.startswith(
        "JAXRING_ALGO=^direct leaves nothing that serves (every algorithm that serves permute"
    )
    # A call that asks for what a setting excludes gets it.
    assert choose_among(near, Selection(but=("ring",)), algorithm="ring").algorithm == "ring"


def test_rdma_between_hosts_has_a_price_of_its_own() -> None:
    hosts = tuple(range(16))
    other = 0
    for nbytes in (64, 4 << 10, 256 << 10, 16 << 20):
        slow, fast = (choose("all_reduce", hosts, hosts, nbytes, "float32", network=each) for each in cost.NETWORKS)
        assert fast.candidates[0][1] < slow.candidates[0][1]
        other += (fast.algorithm, fast.protocol) != (slow.algorithm, slow.protocol)
    assert other
    # Within a host nothing travels by it.
    one = (0,) * 16
    assert choose("all_reduce", hosts, one, 64, "float32", network="rdma") == choose(
        "all_reduce", hosts, one, 64, "float32"
    )
