"""The output on docs/concepts/tuning.md is that of the command above it."""

from __future__ import annotations

import re
import shlex

from jaxring.cli import main
from tests import ROOT

PAGE = ROOT / "docs/concepts/tuning.md"


def test_the_comparison_is_what_the_command_prints(capsys):
    (block,) = re.findall(r"```console\n\$ jaxring (.*?)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    command, shown = block
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown
