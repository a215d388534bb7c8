"""The benchmark of epilogues runs, gets the same values in both ways, and says which is faster."""

from __future__ import annotations

import pytest

from benchmarks import epilogues


@pytest.mark.parametrize("function", epilogues.FUNCTIONS)
def test_it_prints_a_ratio(capsys, function):
    assert epilogues.main(["--function", function, "--bytes", "64K", "--iters", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"{function} of 65536 bytes" in printed
    assert "times as fast as the function of the result" in printed


def test_it_notices_another_value(monkeypatch):
    monkeypatch.setitem(epilogues.FUNCTIONS, "scale", lambda x, fused: x if fused else 2 * x)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        epilogues.measure("scale", 1 << 12, 1)
