"""Benchmarks that compare results run in a small size, and exit with 1, or raise, where the bits are wrong."""

from __future__ import annotations

import jax
import pytest

import jaxring
from benchmarks import collective_matmul, compressed, moe, reproducible, reshard

SMALL = {
    compressed: ["--bytes", "64K"],
    collective_matmul: ["--rows", "16", "--long", "64", "--short", "32"],
    moe: ["--tokens", "16"],
    reproducible: ["--bytes", "64K"],
    reshard: ["--bytes", "64K"],
}


def name(module):
    return module.__name__.rpartition(".")[2]


@pytest.mark.parametrize("bench", SMALL, ids=name)
def test_it_runs(bench, capsys):
    assert bench.main(["--iters", "1", *SMALL[bench]]) == 0
    printed = capsys.readouterr().out
    assert "median ms" in printed
    assert "DIFFERENT" not in printed


def wrong_on_one_rank(function, **only):
    def faulty(x, *args, **options):
        y = function(x, *args, **options)
        wrong = all(options.get(option) in values for option, values in only.items())
        return y + (jax.lax.axis_index("r") == 1).astype(y.dtype) if wrong else y

    return faulty


@pytest.mark.parametrize(
    ("bench", "function", "only"),
    [
        (compressed, "all_reduce", {"compress": ("int8",)}),
        (reproducible, "all_reduce", {"algorithm": ("reproducible",)}),
    ],
    ids=str,
)
def test_other_bits_on_a_rank_are_a_failure(bench, function, only, monkeypatch, capsys):
    monkeypatch.setattr(jaxring, function, wrong_on_one_rank(getattr(jaxring, function), **only))
    assert bench.main(["--iters", "1", *SMALL[bench]]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_an_array_that_is_resharded_wrongly_is_a_failure(monkeypatch, capsys):
    right = jaxring.reshard
    monkeypatch.setattr(jaxring, "reshard", lambda x, target, **options: right(x, target, **options) + 1)
    assert reshard.main(["--iters", "1", *SMALL[reshard]]) == 1
    assert "rows to columns: DIFFERENT bits on " in capsys.readouterr().out
