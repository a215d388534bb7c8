"""What the CUDA planner decides before it touches a GPU: domains, algorithms, protocols, lanes."""

from __future__ import annotations

import functools

import pytest

from jaxring.errors import JoinError
from jaxring.plan import dtypes, tuner
from jaxring.plan.choice import choose_among
from jaxring.plan.epilogue import EpilogueSpec
from jaxring.plan.gpu import copy_engine
from jaxring.plan.gpu import tuner as cuda_tuner
from jaxring.plan.gpu.lanes import Path, lanes_for, one_shot_bytes, path
from jaxring.plan.schedule import Spec
from jaxring.runtime.cuda import builder as cuda_builder
from jaxring.runtime.cuda import nvls as cuda_nvls
from jaxring.runtime.cuda.gpu_info import GpuInfo, domains_of, shared_gpus, stores_whole_lines, why_apart
from jaxring.settings import load


def info(gpus, reaches):
    return GpuInfo(1, 3, 4, gpus, reaches, 132)


def test_gpu_info_survives_its_journey():
    mine = info({0: "a", 7: "b"}, {"a": ("a", "b"), "b": ("b",)})
    assert GpuInfo.from_json(mine.to_json()) == mine
    switched = GpuInfo(1, 3, 4, {0: "a"}, {"a": ("a",)}, 132, ("a",), {"a": ("a", "b")})
    assert GpuInfo.from_json(switched.to_json()) == switched
    with pytest.raises(ValueError, match="lacks"):
        GpuInfo.from_json(b"{}")


def test_ranks_that_reach_each_other_are_one_domain():
    full = {"a": ("a", "b"), "b": ("a", "b")}
    infos = {0: info({0: "a"}, full), 1: info({1: "b"}, full)}
    assert domains_of([0, 1], [0, 1], infos, ["h", "h"]) == [0, 0]
    assert domains_of([0, 1], [0, 1], infos, ["h", "i"]) == [0, 1]


def test_processes_on_one_gpu_are_one_domain():
    infos = {p: info({p: "a"}, {"a": ("a",)}) for p in range(3)}
    assert domains_of([0, 1, 2], [0, 1, 2], infos, ["h"] * 3) == [0, 0, 0]


def test_ranks_on_one_gpu_are_named():
    infos = {0: info({0: "GPU-a", 1: "GPU-b"}, {}), 1: info({2: "GPU-a", 3: "GPU-c"}, {}), 2: info({4: "GPU-a"}, {})}
    assert shared_gpus([0, 2], [0, 1], infos) == "ranks 0 and 1 share GPU-a"
    assert shared_gpus([1, 0, 3, 2, 4], [0, 0, 1, 1, 2], infos) == "ranks 1, 3 and 4 share GPU-a"
    assert shared_gpus([0, 1, 3], [0, 0, 1], infos) == ""


def test_access_must_be_mutual():
    infos = {0: info({0: "a"}, {"a": ("a", "b"), "b": ("b",)}), 1: info({1: "b"}, {"b": ("b",), "a": ("a",)})}
    assert domains_of([0, 1], [0, 1], infos, ["h", "h"]) == [0, 1]


def test_a_process_that_does_not_see_the_others_gpu():
    infos = {0: info({0: "a"}, {"a": ("a",)}), 1: info({1: "b"}, {"b": ("b",)})}
    assert domains_of([0, 1], [0, 1], infos, ["h", "h"]) == [0, 1]
    told = why_apart([0, 1], [0, 1], infos, ["h", "h"])
    assert "process 0 does not see the GPU of rank 1 (process 1, b)" in told
    assert "CUDA_VISIBLE_DEVICES" in told
    assert not why_apart([0, 1], [0, 1], infos, ["h", "i"])
    seen = {"a": ("a",), "b": ("b",)}  # both are seen, and neither reaches the other
    assert not why_apart([0, 1], [0, 1], {0: info({0: "a"}, seen), 1: info({1: "b"}, seen)}, ["h", "h"])


def test_an_unknown_device_is_an_error():
    with pytest.raises(JoinError, match="device 5"):
        domains_of([0, 5], [0, 0], {0: info({0: "a"}, {"a": ("a",)})}, ["h", "h"])


def test_lanes_grow_with_size_up_to_the_limit():
    assert [lanes_for(Path.MESSAGES, n, 16) for n in (1, 128 << 10, 1 << 20, 1 << 30)] == [1, 2, 16, 16]
    assert lanes_for(Path.MEMORY, 1 << 30, 5) == 4
    assert lanes_for(Path.PUSH, 4, 16, fewest=8) == 8


@pytest.mark.parametrize("nbytes", [8 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10])
def test_no_lane_of_a_small_all_reduce_moves_many_bytes(nbytes):
    choice = cuda_tuner.choose("all_reduce", (0,) * 8, nbytes, "float32", 32, whole_lines=True)
    assert choice.algorithm == "direct"
    assert choice.one_shot == (path("all_reduce", 8, nbytes, memory=True) is Path.PUSH)
    if choice.one_shot:
        assert nbytes <= one_shot_bytes(8)
        # Bytes of lines, to each peer.
        assert 2 * nbytes / choice.channels <= 8 << 10
    else:
        assert nbytes / choice.channels <= 16 << 10  # a share of the vector of each rank, of all ranks together


@pytest.mark.parametrize(
    ("ranks", "lanes", "near", "most"),
    [
        (2, 16, True, 256),
        (4, 32, True, 256),
        (8, 16, True, 128),
        (8, 8, True, 64),
        (2, 8, True, 128),
        (2, 16, False, 64),
        (3, 16, True, 64),
        (16, 16, True, 64),
    ],
)
def test_the_one_shot_all_reduce_goes_as_far_as_lanes_and_links_carry_it(ranks, lanes, near, most):
    assert one_shot_bytes(ranks, lanes, near) == most << 10
    for nbytes in (most << 10, (most << 10) + 4):
        choice = cuda_tuner.choose("all_reduce", (0,) * ranks, nbytes, "float32", lanes, whole_lines=near)
        assert choice.one_shot == (nbytes == most << 10)
    assert not cuda_tuner.choose("reduce_scatter", (0,) * ranks, 4, "float32", lanes, whole_lines=near).one_shot
    assert not cuda_tuner.choose("all_reduce", (0,) * ranks, 4, "float32", lanes, "ring", "ll", near).one_shot


def test_an_epilogue_goes_by_step_tables_alone():
    scale = EpilogueSpec(functions=("scale",), result="float32")
    plain = cuda_tuner.choose("all_reduce", (0,) * 8, 8 << 10, "float32", 32)
    choice = cuda_tuner.choose("all_reduce", (0,) * 8, 8 << 10, "float32", 32, epilogue=scale)
    assert (choice.algorithm, choice.protocol) == ("direct", "memory")
    assert choice.channels == lanes_for(Path.MEMORY, 8 << 10, 32) < plain.channels
    assert plain.one_shot
    assert not choice.one_shot
    with pytest.raises(ValueError, match="the switch applies no epilogue"):
        cuda_tuner.choose("all_reduce", (0, 0), 1 << 20, "float32", 32, algorithm="nvls", no_nvls="", epilogue=scale)
    found = cuda_tuner.choose("all_reduce", (0, 0), 64 << 20, "float32", 32, no_nvls="", also=("nvls",), epilogue=scale)
    assert "nvls/memory" not in dict(found.candidates)
    whole = cuda_tuner.choose("all_reduce", (0, 0), 64 << 20, "float32", 32, whole_lines=True, epilogue=scale)
    assert not [name for name, _ in whole.candidates if name.endswith("/ll128")]
    with pytest.raises(ValueError, match="no kernel applies an epilogue by it; use 'll' or 'simple'"):
        cuda_tuner.choose("all_reduce", (0, 0), 1 << 20, "float32", 32, "ring", "ll128", True, epilogue=scale)


def test_a_cast_spreads_fewer_bytes():
    def price(result):
        spec = EpilogueSpec(functions=("cast",), result=result)
        choice = cuda_tuner.choose("all_reduce", (0, 1), 64 << 20, "float32", 16, algorithm="ring", epilogue=spec)
        return dict(choice.candidates)["ring/simple"]

    assert price("bfloat16") < price("float32")


def test_steps_are_completed_where_their_operands_are():
    step = EpilogueSpec(functions=("sgd",), result="float32", further=("float32",))
    apart = (0, 1, 2)
    free = cuda_tuner.choose("reduce_scatter", apart, 1 << 20, "float32", 16, algorithm="halving_doubling")
    assert free.algorithm == "halving_doubling"
    with pytest.raises(ValueError, match="do not have the epilogue's operands"):
        cuda_tuner.choose("reduce_scatter", apart, 1 << 20, "float32", 16, algorithm="halving_doubling", epilogue=step)
    names = {
        name.partition("/")[0]
        for name, _ in cuda_tuner.choose("reduce_scatter", apart, 1 << 20, "float32", 16, epilogue=step).candidates
    }
    assert names
    assert "halving_doubling" not in names


def test_what_goes_by_memory_has_more_lanes_than_what_goes_by_messages():
    def channels(domains, nbytes, **options):
        return cuda_tuner.choose("reduce_scatter", domains, nbytes, "float32", 16, **options).channels

    assert channels((0,) * 4, 256 << 10) == 16
    assert channels((0, 1, 2, 3), 256 << 10, algorithm="direct") == 4


@pytest.mark.parametrize("domains", [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("nbytes", [4, 1 << 20, 1 << 28])
def test_every_collective_finds_a_way_within_the_lanes(domains, collective, nbytes):
    from jaxring.plan.algorithms import build

    choice = cuda_tuner.choose(collective, domains, nbytes, "float32", 8)
    schedule = build(Spec(collective, 4, choice.algorithm, channels=choice.channels, placement=domains))
    assert 1 <= schedule.nlanes <= 8
    assert choice.protocol == "memory" if len(set(domains)) == 1 else choice.protocol in ("simple", "ll")


@pytest.mark.parametrize("collective", sorted(copy_engine.SERVED - {"ragged_all_to_all"}))
@pytest.mark.parametrize("nbytes", [4, 1 << 20, 1 << 28])
def test_copy_engines_only_where_they_are_asked_for_or_cheaper_and_allowed(collective, nbytes):
    def chosen(domains=(0, 0, 0, 0), **options):
        return cuda_tuner.choose(collective, domains, nbytes, "float32", 8, **options)

    assert chosen().algorithm != "copy_engine"
    assert chosen(algorithm="copy_engine").algorithm == "copy_engine"
    prices = dict(chosen(also=("copy_engine",)).candidates)
    best = chosen(also=("copy_engine",))
    assert prices[f"{best.algorithm}/{best.protocol}"] == min(prices.values())
    assert "copy_engine/memory" in prices


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_switch_does_not_round_sums_unless_a_call_asks_for_it(dtype):
    def chosen(collective="all_reduce", dtype=dtype, widening=1, **options):
        options |= {"no_nvls": "", "also": ("nvls",), "nvls_widening": widening}
        return cuda_tuner.choose(collective, (0,) * 8, 1 << 28, dtype, 16, **options)

    assert chosen().algorithm == chosen("reduce_scatter").algorithm == "direct"
    assert f"would have the switch round to {dtype}" in chosen().reason
    assert chosen(algorithm="nvls").algorithm == "nvls"
    # float32 in the switch is rounded afterwards, and what is only moved is not rounded.
    assert "nvls/memory" in dict(chosen(widening=2).candidates)
    assert "nvls/memory" in dict(chosen("all_gather").candidates)
    assert chosen(dtype="float32").algorithm == "nvls"


def test_whole_lines_need_a_link_that_keeps_them():
    def found(devices, *lines):
        infos = [GpuInfo(1, 3, 4, {0: "a", 1: "b"}, {}, 132, (), given) for given in lines]
        return stores_whole_lines(devices, infos)

    both, none = {"a": ("a", "b"), "b": ("a", "b")}, {}
    assert found((0, 1), both, both)
    assert found((0, 0), none, none)
    assert not found((0, 1), both, none)
    assert not found((0, 1), none, both)


def test_whole_lines_are_not_taken_for_granted():
    def chosen(**options):
        return cuda_tuner.choose("all_reduce", (0, 0), 1 << 20, "float32", 8, algorithm="ring", **options)

    assert chosen(protocol="ll128", whole_lines=True).protocol == "ll128"
    with pytest.raises(ValueError, match="'ll128' cannot serve this all_reduce: it needs 128-byte stores"):
        chosen(protocol="ll128")
    assert "ring/ll128" not in dict(chosen().candidates)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_the_switch_is_taken_where_it_is_asked_for_or_allowed(collective):
    def chosen(nbytes=1 << 28, domains=(0, 0, 0, 0), **options):
        return cuda_tuner.choose(collective, domains, nbytes, "float32", 16, **options)

    assert chosen(algorithm="nvls", no_nvls="").algorithm == "nvls"
    default = chosen(no_nvls="")
    assert default.algorithm != "nvls"
    assert "JAXRING_ALGO=+nvls" in default.reason
    assert "nvls" not in chosen(no_nvls="there is no switch", also=("nvls",)).reason
    assert "nvls/memory" in dict(chosen(no_nvls="", also=("nvls",)).candidates)
    assert "nvls/memory" not in dict(chosen(no_nvls="", also=("nvls",), algorithm="direct").candidates)
    with pytest.raises(ValueError, match=f"'nvls' cannot do this {collective}: there is no switch"):
        chosen(algorithm="nvls", no_nvls="there is no switch")


def test_large_sums_go_by_the_switch_where_it_is_allowed_and_deterministic_ones_never():
    def chosen(nbytes, **options):
        return cuda_tuner.choose("all_reduce", (0,) * 8, nbytes, "float32", 16, no_nvls="", also=("nvls",), **options)

    assert chosen(1 << 28).algorithm == "nvls"
    assert chosen(1024).algorithm == "direct"
    assert chosen(1 << 28, algorithm="deterministic").algorithm == "deterministic"


def test_elements_that_are_widened_for_the_switch_cost_as_many_bytes():
    def chosen(nbytes, widening, **options):
        return cuda_tuner.choose(
            "all_reduce", (0,) * 8, nbytes, "bfloat16", 16, no_nvls="", nvls_widening=widening, **options
        )

    prices = [dict(chosen(n, w, algorithm="nvls").candidates)["nvls/memory"] for n, w in ((1 << 28, 2), (1 << 29, 1))]
    assert prices[0] == prices[1]
    assert "2 times as wide" in chosen(1 << 20, 2, algorithm="nvls").reason
    assert "as wide" not in chosen(1 << 20, 1, algorithm="nvls").reason
    assert "as wide" not in chosen(1 << 20, 2, algorithm="direct").reason


class Switches:
    """In the place of the native module: switches add float32, and float16 in twice as many bytes."""

    def switch_widens(self, dtype, op, mean):
        widening = {dtypes.dtype_code("float32"): 1, dtypes.dtype_code("float16"): 2}.get(dtype, 0)
        return 0 if mean or op != dtypes.REDUCE_OPS["sum"] else widening


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"collective": "all_gather", "op": None, "dtype": "int8"}, ""),
        ({"collective": "all_to_all", "op": None}, "it serves all_reduce"),
        ({"dtype": "float16"}, ""),
        ({"op": "mean"}, "no mean of float32"),
        ({"dtype": "int8"}, "no sum of int8"),
        ({"domains": (0, 1)}, "all in one domain"),
        ({"devices": (0, 0)}, "ranks 0 and 1 share one"),
        ({"multicast": ("a",)}, "no multicast for the GPU of rank 1"),
    ],
)
def test_why_ranks_cannot_go_through_the_switch(change, reason):
    case = {
        "collective": "all_reduce",
        "op": "sum",
        "dtype": "float32",
        "domains": (0, 0),
        "devices": (0, 1),
        "multicast": ("a", "b"),
        **change,
    }
    infos = [GpuInfo(1, 3, 4, {0: "a", 1: "b"}, {}, 132, tuple(case.pop("multicast")))] * 2
    given = cuda_nvls.why_not(Switches(), **case, infos=infos)
    assert reason in given if reason else given == ""


def test_a_setting_allows_the_switch_or_rules_it_out():
    pick = functools.partial(cuda_tuner.choose, "all_reduce", (0,) * 8, 1 << 28, "float32", 16, no_nvls="")

    def chosen(setting, **asked):
        return choose_among(pick, load({"JAXRING_ALGO": setting}).algo, **asked)

    assert chosen("+nvls").algorithm == "nvls"
    assert chosen("+nvls").reason.startswith("with JAXRING_ALGO=+nvls, nvls by memory is the cheapest")
    assert chosen("+nvls", algorithm="direct").algorithm == "direct"
    without = chosen("^nvls")
    assert without.algorithm == pick().algorithm != "nvls"
    assert "could do it" not in without.reason
    # A call's own request comes before the setting.
    assert chosen("^nvls", algorithm="nvls").algorithm == "nvls"


def test_on_cpus_there_are_no_switches():
    with pytest.raises(ValueError, match="is for ranks on GPUs"):
        tuner.choose("all_reduce", (0, 0), (0, 0), 64, "float32", "nvls")


def test_on_cpus_there_are_no_copy_engines():
    with pytest.raises(ValueError, match="is for ranks on GPUs"):
        tuner.choose("all_gather", (0, 0), (0, 0), 64, "float32", "copy_engine")


@pytest.mark.parametrize("n", [1, 2, 5])
def test_moves_are_the_sources_of_all_outputs(n):
    perm = tuple((r, (r + 2) % n) for r in range(n - 1))
    for collective in copy_engine.SERVED:
        spec = Spec(collective, n, "direct", root=n - 1, perm=perm if collective == "permute" else ())
        arrived = {r: set() for r in range(n)}
        outputs = {}
        for rank in range(n):
            given, _ = copy_engine.moves(spec, rank)
            targets = [peer for _, peer, _ in given if peer != rank]
            assert targets == sorted(targets, key=lambda peer: (peer - rank) % n)
            for block, peer, to in given:
                assert (peer, to) not in outputs
                outputs[peer, to] = None if block < 0 else (rank, block)
                if peer != rank:
                    arrived[peer].add(to)
        for rank in range(n):
            assert set(copy_engine.moves(spec, rank).arrivals) == arrived[rank]
            assert [outputs.pop((rank, b)) for b in range(len(copy_engine.sources(spec, rank)))] == copy_engine.sources(
                spec, rank
            )
        assert not outputs


def test_what_is_asked_for_is_done_or_refused():
    assert cuda_tuner.choose("all_reduce", (0, 0), 64, "float32", 8, "ring", "ll128", True).protocol == "ll128"
    with pytest.raises(ValueError, match="ll128 needs one domain"):
        cuda_tuner.choose("all_reduce", (0, 1), 64, "float32", 8, "ring", "ll128")
    with pytest.raises(ValueError, match="does not serve"):
        cuda_tuner.choose("all_to_all", (0, 0), 64, "float32", 8, "tree")
    assert cuda_tuner.choose("all_gather", (0, 0), 64, "float32", 8, "copy_engine").algorithm == "copy_engine"
    with pytest.raises(ValueError, match="does not serve all_reduce"):
        cuda_tuner.choose("all_reduce", (0, 0), 64, "float32", 8, "copy_engine")
    with pytest.raises(ValueError, match="in 2 memory domain"):
        cuda_tuner.choose("all_gather", (0, 1), 64, "float32", 8, "copy_engine")
    with pytest.raises(ValueError, match="no protocol 'rdma'; there are memory, simple, ll, ll128"):
        cuda_tuner.choose("all_reduce", (0, 0), 64, "float32", 8, None, "rdma")


def test_a_launch_waits_long_where_nobody_says_how_long(monkeypatch):
    monkeypatch.delenv("JAXRING_TIMEOUT", raising=False)
    monkeypatch.setattr(cuda_builder, "settings", lambda: load({}))
    assert cuda_builder.deadline(300.0) == cuda_builder.PATIENT_S
    assert cuda_builder.deadline(20.0) == 20.0  # the call says it
    monkeypatch.setenv("JAXRING_TIMEOUT", "300")
    assert cuda_builder.deadline(300.0) == 300.0
