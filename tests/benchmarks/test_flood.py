"""The cost of unauthenticated peers is measured: a small job, a slow flood."""

from __future__ import annotations

import pytest

from benchmarks import flood


@pytest.mark.multiprocess
def test_turns_of_all_kinds_are_timed_and_compared(capsys):
    assert flood.main(["-n", "2", "--bytes", "1K", "--rate", "500", "--turns", "2", "--seconds", "0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = ["quiet", "beside", "flooded", "beside / quiet:", "flooded / quiet:", "flooded / beside:"]
    assert len(lines) == len(kinds)
    for line, kind in zip(lines, kinds, strict=True):
        assert line.startswith(kind)
        value = line.removeprefix(kind).split()[0]
        assert float(value) > 0, line
