"""The benchmark of exact sums runs and says what they cost."""

from __future__ import annotations

import pytest

from benchmarks import reproducible


@pytest.mark.parametrize("arguments", [[], ["--op", "mean", "--dtype", "float16", "--data", "wide"]])
def test_it_prints_ratios(capsys, arguments):
    assert reproducible.main(["--bytes", "64K", "--iters", "2", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "of 65536 bytes" in printed
    assert "reproducible: " in printed
    assert "times the tuner's choice" in printed
