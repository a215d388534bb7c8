"""What is done to modules for GPUs before their collectives become calls, on small modules made by hand.

That the results are right, and what XLA makes of them, is tested by `make gpu-programs`.
"""

from __future__ import annotations

import numpy as np
import pytest

from jaxring import _compat
from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.body import Body
from jaxring.dropin.whole_program.gpu import chain
from jaxring.dropin.whole_program.gpu.blocks import lead_with_blocks
from jaxring.dropin.whole_program.gpu.call_order import arrange
from jaxring.dropin.whole_program.gpu.constants import Constants
from jaxring.dropin.whole_program.gpu.dependencies import in_order, needs
from jaxring.dropin.whole_program.gpu.joining import join
from jaxring.dropin.whole_program.gpu.overlap import to_start
from jaxring.dropin.whole_program.gpu.scatters import make_scatters
from jaxring.dropin.whole_program.hlo import Module
from jaxring.dropin.whole_program.rewrite import groups_of
from jaxring.dropin.whole_program.shapes import Shape, row_major, shapes

RANKS = 4
BASE = 7 << 32
SUM = 3


def shape(*dims, dtype="float32", order=None):
    return Shape(dtype, dims, order or tuple(range(len(dims)))).serialized()


class Program:
    """The instructions of a computation, to which the methods append."""

    def __init__(self):
        self.messages = []

    def add(self, opcode, of, *operands, fields=()):
        identifier = BASE + len(self.messages) + 1
        name = f"{opcode}.{len(self.messages) + 1}"
        self.messages.append(
            Message.of((1, name), (2, opcode), (3, of), (35, identifier), (36, packed(operands)), *fields)
        )
        return identifier

    def numbers(self, values, dtype="int32", dims=()):
        literal = Message.of(({"int32": 4, "uint32": 6}[dtype], packed(values)))
        return self.add("constant", shape(*dims, dtype=dtype), fields=[(8, literal)])

    def collective(self, opcode, of, operand, dimension=None, groups=(range(RANKS),)):
        rows = [(1, Message.of((1, packed(row)))) for row in groups]
        fields = [(26, 1), (71, 1), (87, Message.of(*rows))]
        if opcode in ("all-reduce", "reduce-scatter"):
            fields.append((38, packed([SUM])))
        if dimension is not None:
            fields.append((14, packed([dimension])))
        return self.add(opcode, of, operand, fields=fields)

    def module(self):
        root = self.messages[-1].number(35)
        main = Message.of(*((2, each) for each in self.messages), (5, BASE >> 32), (6, root))
        parameters = [Message.of((2, "parameter"), (3, shape()), (35, SUM << 32 | n)) for n in (0, 1)]
        add = Message.of((2, "add"), (3, shape()), (35, SUM << 32 | 2), (36, packed([SUM << 32, SUM << 32 | 1])))
        reduction = Message.of(*((2, each) for each in (*parameters, add)), (5, SUM), (6, SUM << 32 | 2))
        devices = [(3, Message.of((1, packed([n])))) for n in range(RANKS)]
        assignment = Message.of((1, 1), (2, RANKS), *devices)
        data = Message.of((1, "jit_made"), (3, reduction), (3, main), (15, assignment))
        module = Module(bytes(data), on_gpus=True)
        return module, module.computations[1]


def listed(computation):
    """Opcodes and the dimensions of results, in order."""
    return [(each.opcode, *(s.dims for s in shapes(each.shape))) for each in computation.instructions]


def opcodes(computation):
    return [each.opcode for each in computation.instructions]


def assert_ordered(computation):
    seen = set()
    for each in computation.instructions:
        assert set(each.operands) <= seen, each.name
        seen.add(each.id)
    assert len(seen) == len(computation.instructions)
    assert len({each.name for each in computation.instructions}) == len(seen)


def test_constants_are_computed_for_each_partition():
    program = Program()
    partition = program.add("partition-id", shape(dtype="uint32"))
    eight = program.numbers([8])
    product = program.add(
        "multiply", shape(dtype="int32"), program.add("convert", shape(dtype="int32"), partition), eight
    )
    table = program.numbers([0, 0, 1, 1], "uint32", (4,))
    entry = program.add("dynamic-slice", shape(1, dtype="uint32"), table, partition)
    scalar = program.add("reshape", shape(dtype="uint32"), entry)
    other = program.add("add", shape(dtype="int32"), product, program.add("parameter", shape(dtype="int32")))
    constants = Constants(program.module()[1], RANKS)
    np.testing.assert_array_equal(constants.of(product), [0, 8, 16, 24])
    np.testing.assert_array_equal(constants.of(scalar), [0, 0, 1, 1])
    assert constants.of(other) is None


def scattered(starts, *, groups=(range(RANKS),), used_twice=False, block=2):
    """A sum of [8, 3] of which partition p uses the rows from starts[p] on."""
    program = Program()
    x = program.add("parameter", shape(8, 3))
    total = program.collective("all-reduce", shape(8, 3), x, groups=groups)
    table = program.numbers(starts, dims=(RANKS,))
    partition = program.add("partition-id", shape(dtype="uint32"))
    entry = program.add("dynamic-slice", shape(1, dtype="int32"), table, partition)
    begin = program.add("reshape", shape(dtype="int32"), entry)
    part = program.add("dynamic-slice", shape(block, 3), total, begin, program.numbers([0]))
    if used_twice:
        program.add("tuple", bytes(Message.of((2, 13))), part, total)
    module, computation = program.module()
    make_scatters(module, computation)
    assert_ordered(computation)
    return module, computation


@pytest.mark.parametrize(
    ("starts", "groups", "block", "made"),
    [
        ([0, 2, 4, 6], [[0, 1, 2, 3]], 2, [[0, 1, 2, 3]]),
        ([6, 0, 4, 2], [[0, 1, 2, 3]], 2, [[1, 3, 2, 0]]),
        ([0, 0, 4, 4], [[0, 2], [1, 3]], 4, [[0, 2], [1, 3]]),
    ],
)
def test_a_sum_of_which_each_rank_uses_its_part_is_scattered(starts, groups, block, made):
    module, computation = scattered(starts, groups=groups, block=block)
    assert "all-reduce" not in opcodes(computation)
    (scatter,) = [each for each in computation.instructions if each.opcode == "reduce-scatter"]
    assert shapes(scatter.shape)[0].dims == (block, 3)
    assert scatter.dimensions == [0]
    assert computation.instructions[0].id == scatter.operands[0]
    np.testing.assert_array_equal(groups_of(module, scatter), made)


@pytest.mark.parametrize(
    "options",
    [
        {"starts": [0, 2, 4, 4]},
        {"starts": [0, 2, 4, 6], "used_twice": True},
        {"starts": [0, 1, 2, 3], "block": 1},
        {"starts": [0, 4, 0, 4], "groups": [[0, 2], [1, 3]], "block": 4},
    ],
)
def test_other_sums_are_not(options):
    _, computation = scattered(**options)
    assert "reduce-scatter" not in opcodes(computation)
    assert "all-reduce" in opcodes(computation)


def test_blocks_become_the_leading_dimension():
    program = Program()
    x = program.add("parameter", shape(3, 2, 8))
    gathered = program.collective("all-gather", shape(3, 8, 8), x, 1)
    scattered = program.collective("reduce-scatter", shape(3, 8, 2), gathered, 2)
    moved = program.collective("all-to-all", shape(3, 8, 2), scattered, 1)
    program.collective("all-gather", shape(12, 8, 2), moved, 0)
    module, computation = program.module()
    lead_with_blocks(module, computation)
    assert_ordered(computation)
    assert listed(computation)[1:] == [
        ("reshape", (1, 3, 2, 8)),
        ("all-gather", (4, 3, 2, 8)),
        ("transpose", (3, 4, 2, 8)),
        ("reshape", (3, 8, 8)),
        ("reshape", (3, 8, 4, 2)),
        ("transpose", (4, 3, 8, 2)),
        ("reduce-scatter", (1, 3, 8, 2)),
        ("reshape", (3, 8, 2)),
        ("reshape", (3, 4, 2, 2)),
        ("transpose", (4, 3, 2, 2)),
        ("all-to-all", (4, 3, 2, 2)),
        ("transpose", (3, 4, 2, 2)),
        ("reshape", (3, 8, 2)),
        ("all-gather", (12, 8, 2)),
    ]
    assert [each.dimensions for each in computation.instructions if each.opcode == "all-gather"] == [[0], [0]]


def test_operands_for_each_rank_become_one_array():
    program = Program()
    parts = [program.add("parameter", shape(3)) for _ in range(RANKS)]
    result = bytes(Message.of((2, 13), *((4, shape(3)) for _ in parts)))
    rows = Message.of((1, Message.of((1, packed(range(RANKS))))))
    program.add("all-to-all", result, *parts, fields=[(26, 1), (87, rows)])
    module, computation = program.module()
    lead_with_blocks(module, computation)
    assert_ordered(computation)
    assert opcodes(computation)[RANKS:] == [
        *["reshape"] * RANKS, "concatenate", "all-to-all", *["slice", "reshape"] * RANKS, "tuple"
    ]  # fmt: skip


def test_what_does_not_need_each_other_is_joined():
    program = Program()
    x = program.add("parameter", shape(8))
    y = program.add("parameter", shape(4))
    first = program.collective("all-reduce", shape(8), x)
    needs_first = program.collective("all-reduce", shape(8), program.add("dot", shape(8), first))
    second = program.collective("all-reduce", shape(4), y)
    whole = program.collective("all-reduce", shape(4, dtype="int32"), program.add("parameter", shape(4, dtype="int32")))
    halves = program.collective("all-reduce", shape(8), x, groups=([0, 1], [2, 3]))
    program.add("tuple", bytes(Message.of((2, 13))), needs_first, second, whole, halves)
    module, computation = program.module()
    join(module, computation)
    assert_ordered(computation)
    reduces = [each for each in computation.instructions if each.opcode == "all-reduce"]
    assert [each.operands for each in reduces if len(each.operands) > 1] == [[x, y]]
    assert len(reduces) == 4
    parts = [each for each in computation.instructions if each.opcode == "get-tuple-element"]
    assert [each.id for each in parts] == [first, second]


def test_nothing_is_joined_into_a_circle():
    """Each two of a kind are independent, and both pairs together are not."""
    program = Program()
    x = program.add("parameter", shape(8))
    first = program.collective("all-reduce", shape(8), x)
    other_needs = program.collective("all-gather", shape(32), first, 0)
    other = program.collective("all-gather", shape(32), x, 0)
    second = program.collective("all-reduce", shape(32), other)
    program.add("tuple", bytes(Message.of((2, 13))), other_needs, second)
    module, computation = program.module()
    join(module, computation)
    assert_ordered(computation)
    assert opcodes(computation).count("all-reduce") + opcodes(computation).count("all-gather") == 3


def test_a_circle_is_an_error():
    program = Program()
    x = program.add("parameter", shape(8))
    first = program.add("add", shape(8), x)
    second = program.add("add", shape(8), first)
    _, computation = program.module()

    def needed(instruction):
        return [*needs(instruction), *([second] if instruction.id == first else [])]

    with pytest.raises(ValueError, match="needs itself"):
        list(in_order(computation.instructions, needed))


def test_what_is_joined_has_a_limit():
    program = Program()
    size = 16 << 20
    given = [program.add("parameter", shape(size, dtype="int8")) for _ in range(3)]
    made = [program.collective("all-reduce", shape(size, dtype="int8"), x) for x in (*given[:2], given[2])]
    small = program.collective("all-reduce", shape(8, dtype="int8"), program.add("parameter", shape(8, dtype="int8")))
    program.add("tuple", bytes(Message.of((2, 13))), *made, small)
    module, computation = program.module()
    join(module, computation)
    sizes = [len(each.operands) for each in computation.instructions if each.opcode == "all-reduce"]
    assert sorted(sizes) == [1, 1, 2]


def calls_in_order(computation):
    return [each for each in computation.instructions if each.opcode == "custom-call"]


def test_calls_are_chained_in_the_order_in_which_they_are_ready():
    program = Program()
    x = program.add("parameter", shape(8))
    late = program.collective("all-reduce", shape(8), program.add("dot", shape(8), x))
    early = program.collective("all-gather", shape(32), x, 0)
    program.add("tuple", bytes(Message.of((2, 13))), late, early)
    module, computation = program.module()
    arrange(computation)
    assert_ordered(computation)
    assert [each.id for each in computation.instructions if each.id in (late, early)] == [early, late]

    body = Body(module, computation)
    for each in computation.instructions:
        if each.id in (late, early):
            aliasing = [(74, Message.of((1, b""), (2, 0)))] if each.id == late else []
            operands = [*each.operands, body.partition_id()]
            body.replace(each, "custom-call", operands, (28, f"jaxring_{each.opcode.replace('-', '_')}"), *aliasing)
        else:
            body.keep(each)
    computation.take(body.instructions)
    chain(module, computation)
    assert_ordered(computation)
    by_id = {each.id: each for each in computation.instructions}
    first, second = calls_in_order(computation)
    assert by_id[first.operands[-1]].opcode == "partition-id"
    link = by_id[second.operands[-1]]
    assert (link.opcode, link.operands, link.message.number(13)) == ("get-tuple-element", [first.id], 1)
    for call in (first, second):
        aliased = {(tuple(each.numbers(1)), each.number(2)) for each in call.message.messages(74)}
        assert ((1,), 1) in aliased
    assert ((0,), 0) in {(tuple(each.numbers(1)), each.number(2)) for each in second.message.messages(74)}
    assert by_id[late].opcode == by_id[early].opcode == "get-tuple-element"


@pytest.mark.parametrize(
    ("elements", "work", "started"),
    [(1 << 18, "dot", True), (1 << 17, "dot", False), (1 << 18, "add", False)],
)
def test_large_collectives_beside_other_work_are_started(elements, work, started):
    program = Program()
    x = program.add("parameter", shape(elements))
    total = program.collective("all-reduce", shape(elements), program.add("dot", shape(elements), x))
    needing = program.add("dot", shape(elements), total)
    beside = program.add(work, shape(8), program.add("parameter", shape(8)))
    program.add("tuple", bytes(Message.of((2, 13))), needing, beside)
    _, computation = program.module()
    assert to_start(computation) == (frozenset({total}) if started else frozenset())


def test_layouts_become_row_major():
    strange = shape(2, 3, order=(1, 0))
    assert row_major(strange) == shape(2, 3)
    both = bytes(Message.of((2, 13), (4, strange), (4, shape(4))))
    assert row_major(both) == bytes(Message.of((2, 13), (4, shape(2, 3)), (4, shape(4))))


def test_the_plugin_gets_the_transformation_when_it_is_loaded_and_loses_it(monkeypatch):
    from jax._src import xla_bridge
    from jaxlib import _jax, _xla

    made, calls, said = [], [], []
    by_plugin = hasattr(_jax, "get_pjrt_plugin")
    if by_plugin:
        loaded = []
        monkeypatch.setattr(_jax, "pjrt_plugin_loaded", lambda name: name in loaded)
        monkeypatch.setattr(_jax, "get_pjrt_plugin", lambda name: f"plugin {name}")
        monkeypatch.setattr(xla_bridge, "register_plugin_callbacks", made.append)
    else:
        monkeypatch.setattr(xla_bridge, "register_backend_initialization_hook", made.append)
    monkeypatch.setattr(_xla, "register_xla_transform_c_api", lambda *args: calls.append(("register", *args)))
    monkeypatch.setattr(_xla, "clear_xla_transform_c_api", lambda *args: calls.append(("clear", *args)))

    class Client:
        platform, platform_version = "gpu", "cuda 13000"

    class OtherClient:
        platform, platform_version = "tpu", "2026"

    def starts(client):
        made[-1](c_api=object()) if by_plugin else made[-1](client)

    def transform(data):
        return None

    undo = _compat.register_cuda_transformation("ours", transform, said.append)
    starts(OtherClient)
    assert not calls
    if by_plugin:
        loaded.append("cuda")
    given = "plugin cuda" if by_plugin else Client
    for _ in range(2):
        starts(Client)
    assert calls == [("register", given, "ours", 0, transform)]
    undo()
    assert calls[1:] == [("clear", given, "ours", 0)]
    starts(Client)
    assert len(calls) == 2
    never = _compat.register_cuda_transformation("ours", transform, said.append)
    never()
    starts(Client)
    assert len(calls) == 2
    assert not said

    def refuses(*args):
        raise RuntimeError("no such extension")

    monkeypatch.setattr(_xla, "register_xla_transform_c_api", refuses)
    undo = _compat.register_cuda_transformation("ours", transform, said.append)
    starts(Client)
    undo()
    assert said == ["no such extension"]
    assert len(calls) == 2
