"""The tables of cases on 1 to 8 ranks of one process."""

from __future__ import annotations

import pytest

from tests.collectives.cases.coll_ranks import Report
from tests.collectives.cases.coll_tables import TABLES


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
@pytest.mark.sampled(7)
def test_table(ranks, n, table):
    report = Report()
    TABLES[table](ranks(n), report)
    assert report.checks > 0
    assert not report.failures, f"{len(report.failures)} of {report.checks}:\n" + "\n".join(report.failures[:40])
