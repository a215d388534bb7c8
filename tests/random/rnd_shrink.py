"""A smaller program that fails still: its first wrong value alone, and what that needs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.random.rnd_check import check
from tests.random.rnd_generate import Generator

if TYPE_CHECKING:
    from tests.random.rnd_program import Block, Program

_MOST_TRIES = 12


def needed(block: Block) -> Block:
    """Without the statements that no result needs."""
    wanted, kept = set(block.results), []
    for statement in reversed(block.statements):
        if wanted & set(statement.outs):
            kept.append(dataclasses.replace(statement, blocks=tuple(map(needed, statement.blocks))))
            wanted |= set(statement.args)
    return dataclasses.replace(block, statements=tuple(reversed(kept)))


def shrink(program: Program, devices: int) -> Program:
    """Tries each value of the body as the only result, the first one first."""
    best = dataclasses.replace(program, body=needed(program.body))
    if program.outer in ("vjp", "jvp"):
        return best
    generator = Generator(program.seed, devices)
    if generator.program() != program:
        return best
    values = [v for s in best.body.statements for v in s.outs]
    for value in values[:_MOST_TRIES]:
        body = needed(dataclasses.replace(program.body, results=(value,)))
        small = dataclasses.replace(program, body=body, outputs=(generator.types[value],))
        if check([small])[0].faults:
            return small
    return best
