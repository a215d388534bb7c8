"""The hook of commits: which messages it refuses, and that git is told to run it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from tests import ROOT
from tools.commit_message import MOST, wrong

SCRIPT = ROOT / "tools" / "commit_message.py"
LONG = "x" * (MOST + 1)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("Mend it\n\nIt was broken since 3 of 4 runs failed.\n", []),
        ("Mend it\n\nWhy.\n\nSigned-off-by: A <a@b>\n", []),
        (f"{'x' * MOST}\n\nWhy.", []),
        ("Merge branch 'house'", []),
        ("fixup! Mend it", []),
        ("\n# Please enter the commit message\n", ["there is no subject"]),
        ("Mend it", ["add a body"]),
        ("Mend it\n\n# On branch main\n", ["add a body"]),
        ("Mend it\n\nSigned-off-by: A <a@b>\n", ["add a body"]),
        ("Mend it\n\n# ------------------------ >8 ------------------------\ndiff --git a/a b/a\n", ["add a body"]),
        ("Mend it\nbecause\n", ["put an empty line"]),
        (f"{LONG}\n\nWhy.", [f"the subject has {MOST + 1} characters"]),
    ],
)
def test_what_a_message_lacks(message: str, says: list[str]) -> None:
    found = wrong(message)
    assert len(found) == len(says)
    assert all(text.startswith(begin) for text, begin in zip(found, says, strict=True)), found


def test_it_fails_as_git_wants_it(tmp_path) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    for text, code in (("Mend it\n\nWhy.\n", 0), ("Mend it\n", 1)):
        message.write_text(text)
        ended = subprocess.run([sys.executable, SCRIPT, message], capture_output=True, text=True, check=False)
        assert (ended.returncode, bool(ended.stderr)) == (code, bool(code)), ended.stderr


def test_pre_commit_runs_it() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert "commit-msg" in config["default_install_hook_types"]
    (hook,) = (hook for repo in config["repos"] for hook in repo["hooks"] if "commit_message" in hook["entry"])
    assert hook["stages"] == ["commit-msg"]
    assert hook["entry"].split()[-1] == str(SCRIPT.relative_to(ROOT))
