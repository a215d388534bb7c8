"""send, recv and ragged_all_to_all on GPUs, by the tables of tests/collectives, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxring
from tests.collectives.cases.coll_messages import point_to_point, ragged_case, ragged_expected
from tests.collectives.cases.coll_ranks import Ranks, Report


def call_ragged(t, timeout=None):
    return jaxring.ragged_all_to_all(
        t["operand"], t["output"], t["inputs"], t["sizes"], t["outputs"], t["comes"], axis_name="x", timeout=timeout
    )


def ragged_tree(case, dtype, index):
    return {name: v.astype(dtype if name in ("operand", "output") else index) for name, v in case.items()}


def messages(most):
    """Chains of messages, in a loop too, to itself and larger than a slot; parts of 0 to ``most`` rows, twice."""
    ranks, report = Ranks(jax.devices()), Report()
    point_to_point(ranks, report)
    n = ranks.n
    x = np.arange(n * 70000, dtype=np.float32).reshape(n, -1)

    def to_itself(tree):
        same = [(i, i) for i in range(n)]
        token = jaxring.send(tree["x"], "x", same)
        y, _ = jaxring.recv(tree["x"], "x", same, token)
        return {"y": y}

    for rank, value in ranks.run(to_itself, {"x": x}, check_vma=False)["y"].items():
        report.expect_bits(f"to itself, rank {rank}", value, x[rank])
    for dtype, index, size in (("float32", "int32", most), ("int8", "int64", 7), ("bfloat16", "int32", 0)):
        case = ragged_tree(ragged_case(np.random.default_rng(n), n, size), dtype, index)
        shards = ranks.run_twice(report, lambda t: {"y": call_ragged(t)}, case)
        expected = ragged_expected(case)
        for rank, value in shards["y"].items():
            report.expect_bits(f"ragged {dtype} rank {rank}", value, expected[rank])
    assert report.checks > 20
    assert not report.failures, report.failures


def in_groups():
    """ragged_all_to_all in two groups of ranks."""
    ranks, report = Ranks(jax.devices()), Report()
    half = ranks.n // 2
    cases = [ragged_tree(ragged_case(np.random.default_rng(g), half, 5), "float32", "int32") for g in range(2)]
    rows = {name: max(c[name].shape[1] for c in cases) for name in ("operand", "output")}
    for case in cases:
        for name, most in rows.items():
            case[name] = np.pad(case[name], ((0, 0), (0, most - case[name].shape[1]), (0, 0)))
    whole = {name: np.concatenate([case[name] for case in cases]) for name in cases[0]}

    def program(t):
        groups = [list(range(half)), list(range(half, 2 * half))]
        sizes = (t["inputs"], t["sizes"], t["outputs"], t["comes"])
        return {
            "y": jaxring.ragged_all_to_all(t["operand"], t["output"], *sizes, axis_name="x", axis_index_groups=groups)
        }

    expected = np.concatenate([ragged_expected(case) for case in cases])
    for rank, value in ranks.run(program, whole)["y"].items():
        report.expect_bits(f"ragged in groups, rank {rank}", value, expected[rank])
    assert not report.failures, report.failures


def disagree():
    """A program whose receive wants another dtype than is sent."""
    ranks = Ranks(jax.devices())
    pairs = [(0, 1), (1, 0)]

    def program(t):
        token = jaxring.send(t["x"], "x", pairs, timeout=20)
        y, _ = jaxring.recv(jax.ShapeDtypeStruct(t["x"].shape, jnp.int32), "x", pairs, token, timeout=20)
        return {"y": y}

    return lambda: ranks.compile(program, check_vma=False)({"x": ranks.put(np.ones((2, 64), np.float32))})


def ahead(sends, timeout):
    """A program with so many sends before the first receive."""
    ranks = Ranks(jax.devices())
    pairs = [(0, 1), (1, 0)]

    def program(t):
        token = None
        for _ in range(sends):
            token = jaxring.send(t["x"], "x", pairs, token, timeout=timeout)
        for _ in range(sends):
            y, token = jaxring.recv(t["x"], "x", pairs, token, timeout=timeout)
        return {"y": y}

    return lambda: ranks.compile(program, check_vma=False)({"x": ranks.put(np.ones((2, 64), np.float32))})


def bad_sizes(what):
    """A program whose numbers cannot be served."""
    ranks = Ranks(jax.devices())
    case = ragged_case(np.random.default_rng(0), ranks.n, 6)
    if what == "disagree":
        case["comes"][0, 1] += 1
    elif what == "negative":
        case["inputs"][0, 0] = -1
    elif what == "input":
        case["inputs"][1, 0] = case["operand"].shape[1] + 1
    elif what == "output":
        case["outputs"][0, 1] = case["output"].shape[1] + 1
    tree = jax.tree.map(ranks.put, ragged_tree(case, "float32", "int32"))
    compiled = ranks.compile(lambda t: {"y": call_ragged(t, timeout=20)})
    return lambda: compiled(tree)
