"""The README's table of what has run where is the one that its command writes, and each line is proved."""

from __future__ import annotations

import pytest

from tests import ROOT
from tools import support_table


def test_the_readme_has_the_table_of_the_command():
    page = (ROOT / "README.md").read_text()
    assert support_table.with_table(page) == page, "run `python tools/support_table.py --write`"


@pytest.mark.parametrize("proof", ["make nothing", "stage:nothing", "test:test_nothing"])
def test_a_line_without_a_proof_is_refused(proof):
    with pytest.raises(ValueError, match=f"'a part' ran \\(hardware\\): {proof} is missing"):
        support_table.check(support_table.Line("a part", "hardware", (proof,)))
