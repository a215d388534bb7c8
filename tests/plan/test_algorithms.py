"""Every algorithm x collective is verified for up to 64 ranks, with all roots, several placements and channels."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest

from jaxring.plan.algorithms import ALGORITHMS, build, serving
from jaxring.plan.collectives import COLLECTIVES, Root
from jaxring.plan.schedule import Buffer, Chunk, Kind, Peer, ScheduleError, Spec
from jaxring.plan.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS = [(name, collective) for name, entry in ALGORITHMS.items() for collective in sorted(entry.collectives)]
DIRECT = [c for c in COLLECTIVES if c in ALGORITHMS["direct"].collectives]


SMALL = 10  # up to here: every root with every placement and number of channels


def placements(n: int) -> list[tuple[int, ...]]:
    """All on one domain, each on its own, domains of two and of eight, uneven ones, and interleaved."""
    uneven = (0, 0, 0, 1, 2, 2)
    candidates = [
        (0,) * n,
        tuple(range(n)),
        tuple(r // 2 for r in range(n)),
        tuple(r // 8 for r in range(n)),
        tuple(3 * (r // 6) + uneven[r % 6] for r in range(n)),
        tuple(1 - r % 2 for r in range(n)),
    ]
    return list(dict.fromkeys(candidates))


def perms(n: int) -> list[tuple[tuple[int, int], ...]]:
    """A rotation, a swap of ends that leaves the others out, half a shift, and the ranks' own."""
    rotation = tuple((r, (r + 1) % n) for r in range(n))
    ends = ((0, n - 1), (n - 1, 0)) if n > 1 else ()
    return [rotation, ends, tuple((r, r + 1) for r in range(0, n - 1, 2)), tuple((r, r) for r in range(n))]


def specs(algorithm: str, collective: str, n: int) -> Iterator[Spec]:
    """All combinations for small n; for larger n every root with one of the placements and channels, in turn.

    Gather and the hierarchical algorithms take every seventh root beyond 24 ranks, and all of them at 32.
    """
    where = placements(n)
    roots = range(n) if COLLECTIVES[collective].root is not Root.NONE else range(1)
    if n <= SMALL:
        for channels in (1, 2, 3):
            for placement in where if ALGORITHMS[algorithm].memory else where[1:3]:
                for root in roots:
                    for perm in perms(n) if collective == "permute" else [()]:
                        yield Spec(collective, n, algorithm, root, channels, placement, perm)
        return
    if len(roots) > 1 and n > 24 and n != 32 and (collective == "gather" or algorithm.startswith("hier")):
        roots = range(n % 7, n, 7)  # all of them would be cubic work
    if algorithm.startswith("hier"):
        where = where[2:]  # one domain is direct, and domains of one rank make it flat
    turns = 1 if not ALGORITHMS[algorithm].memory else 2
    for index in range(max(len(roots), turns)):
        perm = perms(n)[(index + n) % 4] if collective == "permute" else ()
        channels = 2 if (index + n) % 5 == 0 else 1
        yield Spec(collective, n, algorithm, roots[index % len(roots)], channels, where[(index + n) % len(where)], perm)


@pytest.mark.parametrize(("algorithm", "collective"), PAIRS)
@pytest.mark.sampled(7)
def test_every_rank_count(algorithm: str, collective: str) -> None:
    most = 12 if algorithm in ("deterministic", "reproducible") else 64  # the code of direct
    # Of the larger counts each pair takes every sixteenth, another one than its neighbours, and those around powers of
    # two: all of them take minutes (TEST_ALL=1).
    turn = PAIRS.index((algorithm, collective))
    few = "TEST_ALL" not in os.environ
    for n in range(1, most + 1):
        if few and n > 16 and (n + turn) % 16 and n not in (32, 33, 64):
            continue
        for spec in specs(algorithm, collective, n):
            report = verify(build(spec))
            assert report.max_fifo <= 2


def test_direct_serves_everything() -> None:
    assert set(DIRECT) == set(COLLECTIVES)
    assert serving("all_to_all") == ["direct", "pxn", "multileader", "deterministic"]


@pytest.mark.parametrize(("domains", "width"), [(16, 8), (4, 2)])
@pytest.mark.sampled(2)
def test_pxn_sends_a_message_per_domain_and_none_across_rails(domains: int, width: int) -> None:
    n = domains * width
    where = tuple(rank // width for rank in range(n))
    schedule = build(Spec("all_to_all", n, "pxn", placement=where))
    direct = verify(build(Spec("all_to_all", n, "direct", placement=where)))
    assert sum(verify(schedule).messages) * width == sum(direct.messages)
    for rank in range(n):
        sends, receives = schedule.message_peers(rank)
        assert {peer % width for peer in sends | receives} == {rank % width}
        assert {where[peer] for peer in sends} == set(range(domains)) - {where[rank]}
    # What the verifier says of groups that do not fit.
    lanes = {rank: [list(lane) for lane in schedule.lanes(rank)] for rank in range(n)}
    wrong = lanes[0][0][-1]._replace(parts=width - 1)
    lanes[0][0][-1] = wrong
    for broken, said in (
        (dataclasses.replace(schedule, group=1), "gathers"),
        (dataclasses.replace(schedule, lanes_fn=lambda rank: lanes[rank]), "spread"),
    ):
        with pytest.raises(ScheduleError, match=said):
            verify(broken)


@pytest.mark.parametrize(("domains", "width"), [(9, 8), (4, 2), (2, 4)])
def test_multileader_sends_a_message_per_pair_of_domains(domains: int, width: int) -> None:
    n = domains * width
    where = tuple(rank // width for rank in range(n))
    schedule = build(Spec("all_to_all", n, "multileader", placement=where))
    report = verify(schedule)
    assert sum(report.messages) == domains * (domains - 1)
    assert max(report.messages) - min(report.messages) <= 1
    gathers = [step for rank in range(n) for step in schedule.lanes(rank)[0] if step.kind is Kind.GATHER]
    assert sorted((where[step.recv[0].rank], where[step.send[0].rank]) for step in gathers) == [
        (a, b) for a in range(domains) for b in range(domains) if a != b
    ]
    # What the verifier says of groups that do not fit.
    first = schedule.lanes(0)[0]
    at = next(number for number, step in enumerate(first) if step.kind is Kind.SPREAD)
    assert first[at].send == tuple(Peer(rank, memory=True) for rank in range(1, width))
    for number, change, said in (
        (0, {"parts": 0}, "it gathers 0 chunks"),
        (0, {"parts": width + 1}, f"it gathers {(width + 1) * width} chunks; the schedule declares {width * width}"),
        (0, {"src": Chunk(Buffer.INPUT, n - 1)}, f"there are no {width} blocks from chunk {n - 1} on"),
        (0, {"recv": first[0].recv[:-1]}, f"a message of {(width - 1) * width} chunks is spread into {width * width}"),
        (at, {"parts": 0}, "a SPREAD takes one message apart"),
        (at, {"parts": n + 1}, f"there are no {n + 1} blocks from chunk"),
        (at, {"send": ()}, f"a message of {width * width} chunks is spread into {width} blocks"),
        (at, {"send": (Peer(1),)}, "in the order of their ranks"),
    ):
        steps = [*first[:number], first[number]._replace(**change), *first[number + 1 :]]
        broken = dataclasses.replace(
            schedule, lanes_fn=lambda rank, steps=steps: [steps] if rank == 0 else schedule.lanes(rank)
        )
        with pytest.raises(ScheduleError, match=said):
            verify(broken)


def test_multileader_is_direct_where_its_messages_would_have_too_many_chunks() -> None:
    for width, group in ((11, 121), (12, 1)):
        where = tuple(rank // width for rank in range(2 * width))
        schedule = build(Spec("all_to_all", 2 * width, "multileader", placement=where))
        assert schedule.group == group
        assert ALGORITHMS["multileader"].differs(where) == (group > 1)
        verify(schedule)


@pytest.mark.parametrize("algorithm", ["direct", "deterministic", "reproducible"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
def test_direct_folds_in_rank_order_for_any_placement(algorithm: str, collective: str) -> None:
    for n in (1, 2, 5, 9, 16):
        for channels in (1, 2):
            for placement in placements(n):
                report = verify(build(Spec(collective, n, algorithm, n // 2, channels, placement)))
                orders = {report.fold_order(chunk) for chunk in report.order_of}
                assert orders == {"+".join(map(str, range(n)))}


def test_fold_orders_are_what_the_algorithms_say() -> None:
    ring = verify(build(Spec("all_reduce", 4, "ring")))
    assert [ring.fold_order(c) for c in range(4)] == ["0+1+2+3", "1+2+3+0", "2+3+0+1", "3+0+1+2"]
    tree = verify(build(Spec("all_reduce", 3, "tree")))
    assert [tree.fold_order(c) for c in range(2)] == ["1+0+2", "0+2+1"]
    halving = verify(build(Spec("all_reduce", 4, "halving_doubling")))
    assert verify(build(Spec("reduce_scatter", 5, "pat"))).fold_order(0) == "0+4+2+(1+3)"
    assert halving.fold_order(0) == "0+2+(1+3)"


@pytest.mark.parametrize("n", [2, 3, 7, 16])
def test_message_counts(n: int) -> None:
    assert set(verify(build(Spec("all_reduce", n, "ring"))).messages) == {2 * (n - 1)}
    assert set(verify(build(Spec("all_gather", n, "ring"))).messages) == {n - 1}
    assert set(verify(build(Spec("all_reduce", n, "direct"))).messages) == {2 * (n - 1)}
    assert set(verify(build(Spec("all_reduce", n, "direct", placement=(0,) * n))).messages) == {0}
    # A double tree: n - 1 edges up and down in each of two trees.
    assert sum(verify(build(Spec("all_reduce", n, "tree"))).messages) == 4 * (n - 1)


def test_one_domain_takes_one_step_per_rank() -> None:
    report = verify(build(Spec("all_reduce", 8, "direct", channels=2, placement=(0,) * 8)))
    assert report.max_steps == 1
    assert report.steps == (2,) * 8


@pytest.mark.parametrize("algorithm", ["hier_ring", "hier_tree", "hier_direct"])
def test_hierarchical_messages_stay_between_domains(algorithm: str) -> None:
    placement = (0, 0, 0, 1, 1, 2, 2, 2)
    schedule = build(Spec("all_reduce", 8, algorithm, placement=placement))
    for rank in range(8):
        send, recv = schedule.message_peers(rank)
        assert all(placement[peer] != placement[rank] for peer in send | recv)
        assert schedule.uses_memory(rank)


def test_two_trees_share_the_inner_work() -> None:
    from jaxring.plan.algorithms.tree import root_of, tree

    for count in range(1, 200):
        inner = [0] * (count + 1)
        for second in (False, True):
            reached = {root_of(count, second)}
            frontier = list(reached)
            depth = 0
            while frontier:
                children = [(label, child) for label in frontier for child in tree(label, count, second)[1]]
                assert all(tree(child, count, second)[0] == label for label, child in children)
                frontier = [child for _, child in children]
                assert not reached & set(frontier)
                reached |= set(frontier)
                depth += 1
            assert reached == set(range(1, count + 1))
            assert depth <= count.bit_length()
            for label in range(1, count + 1):
                inner[label] += bool(tree(label, count, second)[1])
        assert max(inner) <= 1


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if a not in ("deterministic", "reproducible")])
@pytest.mark.sampled(5)
def test_single_ranks_of_a_large_schedule(algorithm: str) -> None:
    n = 65536
    collective = {"pxn": "all_to_all", "multileader": "all_to_all", "pat": "all_gather"}.get(algorithm, "all_reduce")
    schedule = build(Spec(collective, n, algorithm, placement=tuple(r // 8 for r in range(n))))
    send, recv = schedule.message_peers(4711)
    assert 4711 not in send | recv
    assert max(send | recv) < n


def test_refusals_help() -> None:
    with pytest.raises(ValueError, match="does not serve all_to_all; use direct"):
        build(Spec("all_to_all", 4, "ring"))
    with pytest.raises(ValueError, match="there is no algorithm 'star'"):
        build(Spec("all_reduce", 4, "star"))
    with pytest.raises(ValueError, match="root 4 is not"):
        Spec("reduce", 4, "direct", root=4)
    with pytest.raises(ValueError, match="names a target twice"):
        Spec("permute", 4, "direct", perm=((0, 1), (2, 1)))
    with pytest.raises(ValueError, match="placement names 3"):
        Spec("reduce", 4, "direct", placement=(0, 0, 1))
