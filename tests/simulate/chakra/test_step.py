"""Training steps as Chakra traces, read and written beside protobuf's own library and the real schema."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxring.simulate import training
from jaxring.simulate.chakra import nodes, step
from jaxring.simulate.training import Collective, Compute, Message
from tests.simulate.chakra import schema

# examples/workload/microbenchmarks/all_reduce/8npus_1MB/all_reduce.0.et of ASTRA-sim: an all-reduce of 1 MiB.
ASTRA_SIM = bytes.fromhex(
    "070a05302e302e34481214616c6c5f7265647563655f386e7075735f314d421807520e0a0969735f6370755f6f70d80100520d0a09636f"
    "6d6d5f747970654800520f0a09636f6d6d5f73697a6548808040"
)


def taking(us: float):
    return lambda _: types.SimpleNamespace(time_us=us)


def node(number: int, kind: int, needs=(), us=0, name="", **attributes):
    made = schema.Node(id=number, name=name, type=kind, data_deps=needs, duration_micros=us)
    for key, value in attributes.items():
        given = {"string_val": value} if isinstance(value, str) else {"int64_val": value}
        made.attr.append(schema.Attribute(name=key, **given))
    return made


def read(made: list) -> list[training.Entry]:
    return step.entries(nodes.read(schema.encode(made)))


COMP, SEND, RECV, COLL = 4, 5, 6, 7


def test_a_trace_of_astra_sim():
    assert step.entries(nodes.read(ASTRA_SIM)) == [Collective("all_reduce", 1 << 20)]
    assert step.entries(nodes.read(gzip.compress(ASTRA_SIM))) == [Collective("all_reduce", 1 << 20)]


def test_entries_stand_behind_what_they_need():
    # Node 7 needs 9, which the file has later; 8 takes no time, and what needs it needs what it needs.
    made = [
        node(7, COMP, [9, 8], us=5),
        node(8, 1, [9]),
        node(9, COLL, us=99, comm_type=7, comm_size=4096),
        node(10, COMP, us=3, is_cpu_op=1),
    ]
    assert read(made) == [Collective("reduce_scatter", 4096), Compute(5.0, (0,)), Compute(3.0, host=True)]


def test_what_is_ready_is_computed_meanwhile():
    """The second computation needs nothing, so it runs while the first one's collective does."""
    made = [node(0, COLL, comm_type=0, comm_size=8), node(1, COMP, [0], us=10), node(2, COMP, us=20)]
    found = training.play(read(made), taking(50.0), ordered=False)
    assert found.spans == ((0.0, 50.0), (50.0, 60.0), (0.0, 20.0))
    assert (found.step, found.compute, found.communication, found.exposed) == (60.0, 30.0, 50.0, 30.0)


def test_the_host_computes_beside_the_device():
    made = [node(0, COMP, us=10, is_cpu_op=1), node(1, COMP, [0], us=30), node(2, COMP, [0], us=10, is_cpu_op=1)]
    found = training.play(read(made), taking(0.0), ordered=False)
    assert found.spans == ((0.0, 10.0), (10.0, 40.0), (10.0, 20.0))
    assert (found.step, found.compute, found.exposed) == (40.0, 30.0, 0.0)


@pytest.mark.parametrize("field", ["int32_val", "int64_val", "uint64_val", "sint64_val", "fixed64_val", "sfixed32_val"])
def test_every_kind_of_integer(field):
    made = node(0, COLL, comm_type=0)
    made.attr.append(schema.Attribute(name="comm_size", **{field: 123456}))
    assert read([made]) == [Collective("all_reduce", 123456)]


def test_process_groups():
    groups = node(1, 1)
    groups.inputs.values = '[\'[{"pg_name": "0", "ranks": []}, {"pg_name": "3", "ranks": [0, 2, 4, 6]}]\']'
    sizes = [groups, *(node(2 + i, COLL, comm_type=0, comm_size=8, pg_name=name) for i, name in enumerate("03"))]
    assert [entry.groups for entry in read(sizes)] == [(), ((0, 2, 4, 6),)]


def test_messages():
    """A process sends and receives at the same time, but sends one message at a time."""
    ends = [{"comm_src": 2, "comm_dst": 3}, {"comm_src": 2, "comm_dst": 0}, {"comm_src": 1, "comm_dst": 2}]
    made = [node(i, RECV if i == 2 else SEND, comm_size=64, comm_tag=i, **each) for i, each in enumerate(ends)]
    assert read(made) == [Message(64, 2, 3), Message(64, 2, 0), Message(64, 1, 2, received=True)]
    found = training.play(read(made), taking(5.0), ordered=False)
    assert found.spans == ((0.0, 5.0), (5.0, 10.0), (0.0, 5.0))
    assert (found.step, found.communication, found.exposed) == (10.0, 15.0, 10.0)


STEP = [
    Compute(100.4),
    Collective("all_reduce", 1 << 20),
    Compute(100.4),
    Collective("all_gather", 64),
    Compute(9.2, (1,)),
]


def test_written_and_read_again():
    again = step.entries(nodes.read(nodes.write(step.nodes(STEP))))
    assert [entry.us for entry in again if isinstance(entry, Compute)] == [100.0, 101.0, 9.0]
    assert [e.nbytes for e in again if isinstance(e, Collective)] == [1 << 20, 64]
    rounded = [Compute(round(e.us + 0.2), e.needs) if isinstance(e, Compute) else e for e in STEP]
    rounded[0] = Compute(100.0)
    assert training.play(again, taking(60.0), False) == training.play(rounded, taking(60.0))


GROUPS = ((0, 1), (2, 3))
PARTED = [
    Compute(5.0),
    Collective("all_reduce", 64, groups=GROUPS),
    Message(4096, 1, 2),
    Compute(7.0, (1, 2)),
    Collective("all_gather", 8),
]


@pytest.mark.parametrize("rank", range(5))
def test_each_rank_s_trace_has_its_own_part(rank):
    """Rank 4 is in no group: its second computation needs what the first collective needs."""
    again = step.entries(nodes.read(nodes.write(step.nodes(PARTED, rank=rank))))
    group = next((each for each in GROUPS if rank in each), None)
    assert [e.groups for e in again if isinstance(e, Collective)] == [*([(group,)] if group else []), ()]
    messages = [Message(4096, 1, 2, received=rank == 2)] if rank in (1, 2) else []
    assert [dataclasses.replace(e, needs=()) for e in again if isinstance(e, Message)] == messages
    second = next(e for e in again if isinstance(e, Compute) and e.us == 7.0)
    kinds = [type(again[other]) for other in second.needs]
    assert kinds == [Compute, *([Collective] if group else []), *([Message] if messages else [])]


def test_groups_are_listed_as_pytorch_lists_them():
    found = schema.decode(nodes.write(step.nodes(PARTED, rank=3)))
    assert (found[0].name, found[0].type) == ("## process_group:init ##", 1)
    assert found[0].inputs.values == '[\'[{"pg_name": "2", "ranks": [2, 3]}]\']'
    (reduced,) = [each for each in found if each.name == "all_reduce_1"]
    assert schema.attributes(reduced)["pg_name"] == "2"
    assert found[0].id in reduced.data_deps


def test_protobuf_reads_what_is_written():
    found = schema.decode(nodes.write(step.nodes(STEP)))
    assert [each.type for each in found] == [COMP, COLL, COMP, COLL, COMP]
    assert [list(each.data_deps) for each in found] == [[], [0], [0], [2, 1], [1, 2]]
    assert schema.attributes(found[3]) == {"is_cpu_op": False, "comm_type": 2, "comm_size": 64}
    assert [each.duration_micros for each in found] == [100, 0, 101, 0, 9]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([node(4, 2, name="load")], r"node 4 \(load\): .* has no MEM_LOAD_NODE"),
        ([node(4, SEND, comm_size=8, comm_dst=1)], r"its comm_src and comm_dst are None and 1, not two ranks"),
        ([node(4, RECV, comm_src=0, comm_dst=1)], "its comm_size is None, not a number of bytes from 1"),
        (
            [node(4, COLL, comm_type=0, comm_size=8, pg_name="3")],
            "ranks of its process group 3; listed: none",
        ),
        ([node(4, COLL, comm_type=9, comm_size=1)], "a barrier cannot be simulated"),
        ([node(4, COLL, comm_size=1)], r"comm_type None cannot be simulated; these can: 0 \(all_reduce\)"),
        ([node(4, COLL, comm_type=0)], "its comm_size is None, not a number of bytes from 1"),
        ([node(4, COMP, [5])], "node 4 .* needs node 5, which is not there"),
        ([node(4, COMP, [5]), node(5, COMP, [6]), node(6, COMP, [5])], "need each other: 5 needs 6 needs 5"),
        ([node(4, COMP), node(4, COMP)], r"byte \d+: a second node has the id 4"),
        ([node(4, 77)], r"byte 8: this is no node of a Chakra trace: 77 is not a valid NodeType"),
        ([], "it holds no node of a Chakra trace"),
    ],
)
def test_what_is_no_step(made, why):
    with pytest.raises(ValueError, match=why):
        read(made)


def test_broken_files():
    with pytest.raises(ValueError, match=r"byte 8: .*"):
        nodes.read(ASTRA_SIM[:-1])
    with pytest.raises(ValueError, match="its compression is broken"):
        nodes.read(gzip.compress(ASTRA_SIM)[:-9])


@settings(deadline=None)
@given(st.binary(max_size=64), st.integers(0, len(ASTRA_SIM)))
def test_any_bytes_are_read_or_refused(data, keep):
    for each in (data, ASTRA_SIM[:keep] + data):
        with contextlib.suppress(ValueError):
            step.entries(nodes.read(each))


def test_chakra_has_no_permute():
    with pytest.raises(ValueError, match="Chakra has no permute"):
        step.nodes([Collective("permute", 4)])
