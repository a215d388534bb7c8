"""The tables of messages between named ranks, barriers, and all-to-all of uneven parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxring

if TYPE_CHECKING:
    from tests.collectives.cases.coll_ranks import Ranks, Report


def point_to_point(ranks: Ranks, report: Report) -> None:
    """Chains of send and recv with several tags, against the order of the tags, and in scan."""
    n = ranks.n
    x = np.arange(n * 5, dtype=np.float32).reshape(n, 5)
    right, left = [(i, (i + 1) % n) for i in range(n)], [(i, (i - 1) % n) for i in range(n)]
    some = [(i, i + 1) for i in range(n - 1)]

    def program(tree: Any) -> Any:
        x = tree["x"]
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        token = jaxring.send(x, "x", right, tag=1)
        token = jaxring.send(x * 10, "x", right, token, tag=2)
        token = jaxring.send(x * 100, "x", left, token, tag=3)
        token = jaxring.send(x * 1000, "x", right, token, tag=1)
        out = {}
        out["tag2"], token = jaxring.recv(like, "x", right, token, tag=2)
        out["left"], token = jaxring.recv(like, "x", left, token, tag=3)
        out["first"], token = jaxring.recv(like, "x", right, token, tag=1)
        out["second"], token = jaxring.recv(like, "x", right, token, tag=1)
        token = jaxring.send((x * 3).astype(jnp.bfloat16), "x", some, token)
        out["some"], token = jaxring.recv(jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), "x", some, token)

        def step(carry: Any, k: Any) -> Any:
            value, token = carry
            token = jaxring.send(value + k, "x", right, token, tag=7)
            value, token = jaxring.recv(like, "x", right, token, tag=7)
            return (value, token), value.sum()

        (out["scan"], token), out["sums"] = jax.lax.scan(step, (x, token), jnp.arange(12, dtype=x.dtype))
        return out

    got = ranks.run_twice(report, program, {"x": x}, check_vma=False)
    scanned, sums = x.copy(), []
    for k in range(12):
        scanned = np.roll(scanned + np.float32(k), 1, axis=0)
        sums.append(scanned.sum(axis=1))
    for rank in ranks.local:
        before, after = x[(rank - 1) % n], x[(rank + 1) % n]
        some_expected = (before * 3 if rank else before * 0).astype(jnp.bfloat16)
        expected = {
            "tag2": before * 10, "left": after * 100, "first": before, "second": before * 1000,
            "some": some_expected, "scan": scanned[rank], "sums": np.array([s[rank] for s in sums]),
        }  # fmt: skip
        for name, value in expected.items():
            report.expect_bits(f"send/recv {name} rank {rank}", got[name][rank], value)


def barriers(ranks: Ranks, report: Report) -> None:
    """A barrier gives zero, in a loop too."""

    def program(tree: Any) -> Any:
        def step(total: Any, _: Any) -> Any:
            return total + jaxring.barrier("x"), None

        total, _ = jax.lax.scan(step, jnp.zeros((), jnp.uint32), None, length=20)
        return {"y": tree["x"] + total}

    for rank, value in ranks.run(program, {"x": np.ones((ranks.n, 3), np.uint32)}, check_vma=False)["y"].items():
        report.expect_bits(f"barrier rank {rank}", value, np.ones(3, np.uint32))


def ragged_case(rng: np.random.Generator, n: int, most: int) -> dict[str, np.ndarray]:
    """Arguments of ragged_all_to_all of all ranks: parts of 0 to ``most`` rows, in a random order, with gaps."""
    sizes = rng.integers(0, most + 1, (n, n)).astype(np.int32)
    rows_in, rows_out = int(sizes.sum(axis=1).max()) + n + 3, int(sizes.sum(axis=0).max()) + n + 2
    inputs, outputs = np.zeros((n, n), np.int32), np.zeros((n, n), np.int32)
    for rank in range(n):
        at = 1
        for j in rng.permutation(n):
            inputs[rank, j] = at
            at += sizes[rank, j] + (at < n)
        at = 0
        for i in rng.permutation(n):
            outputs[i, rank] = at
            at += sizes[i, rank] + (at < n)
    return {
        "operand": rng.normal(size=(n, rows_in, 3)),
        "output": rng.normal(size=(n, rows_out, 3)),
        "inputs": inputs,
        "sizes": sizes,
        "outputs": outputs,
        "comes": np.ascontiguousarray(sizes.T),
    }


def ragged_expected(case: dict[str, np.ndarray]) -> np.ndarray:
    """What ragged_all_to_all gives, by its definition."""
    y = case["output"].copy()
    for i in range(len(y)):
        for j in range(len(y)):
            count, source, target = case["sizes"][i, j], case["inputs"][i, j], case["outputs"][i, j]
            y[j, target : target + count] = case["operand"][i, source : source + count]
    return y


def ragged(ranks: Ranks, report: Report) -> None:
    """ragged_all_to_all against its definition: several dtypes and index types, empty parts, several tiles."""
    rng = np.random.default_rng(ranks.n)
    n = ranks.n
    for dtype, index, most in (("float32", "int32", 9), ("int8", "int64", 40), ("bfloat16", "int32", 6000)):
        cases = [ragged_case(rng, n, m) for m in (most, 0)]
        trees = {
            str(k): {
                name: value.astype(dtype if name in ("operand", "output") else index) for name, value in one.items()
            }
            for k, one in enumerate(cases)
        }

        def program(tree: Any) -> Any:
            return {
                name: jaxring.ragged_all_to_all(
                    t["operand"], t["output"], t["inputs"], t["sizes"], t["outputs"], t["comes"], axis_name="x"
                )
                for name, t in tree.items()
            }

        for name, shards in ranks.run_twice(report, program, trees).items():
            expected = ragged_expected(trees[name])
            for rank, value in shards.items():
                report.expect_bits(f"ragged {dtype} {name} rank {rank}", value, expected[rank])
