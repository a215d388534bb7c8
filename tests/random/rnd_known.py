"""Programs at which the check itself once failed, run together: ``python rnd_known.py`` prints what came of each."""

from __future__ import annotations

import json

from tests.random import run
from tests.random.rnd_program import Block, Program, Statement, Type

BOTH = {"axes": ("a",), "ranks": 2}


def _program(inputs: list[Type], outputs: list[Type], *statements: Statement) -> Program:
    last = statements[-1].outs[: len(outputs)]
    body = Block(tuple(range(len(inputs))), statements, last)
    return Program(0, (("a", 2),), (0, 1), ("a",), False, tuple(inputs), tuple(outputs), body)


def _float(*shape: int) -> Type:
    return Type(shape, "float32", ("a",), moved=True)


_ALL_TO_ALL = {"name": "all_to_all", "axes": ("v",), "ranks": 2, "tiled": True, "split": 0, "concat": 0}

KNOWN = {
    "a received value that is not used": _program(
        [_float(2)],
        [_float(2)],
        Statement((1,), "reshape", (0,), {"shape": (1, 2)}),
        Statement((2, 3), "collective", (0, 1), {"name": "message", **BOTH, "perm": [(0, 1), (1, 0)], "tag": 0}),
    ),
    "a gather along a dimension of length 0": _program(
        [_float(0)],
        [_float(0)],
        Statement((1,), "collective", (0,), {"name": "all_gather", **BOTH, "tiled": True, "axis": 0}),
    ),
    "jax.vmap of an all_to_all of what is not batched": _program(
        [_float(2), _float(2)],
        [_float(2, 2)],
        Statement(
            (6, 7),
            "vmap",
            (0, 1),
            {"axis": "v", "size": 2, "mapped": (0,)},
            (Block((2, 3), (Statement((4,), "collective", (3,), _ALL_TO_ALL),), (4, 2)),),
        ),
    ),
}


def main() -> None:
    """The command."""
    run.start(2)
    from tests.random.rnd_check import check

    outcomes = zip(KNOWN, check(list(KNOWN.values())), strict=True)
    print(json.dumps({name: {"faults": o.faults, "refused": o.refused[-300:]} for name, o in outcomes}))


if __name__ == "__main__":
    main()
