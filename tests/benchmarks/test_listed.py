"""docs/concepts/measuring.md lists each command of benchmarks/, once."""

from __future__ import annotations

import re

from tests import ROOT

PAGE = ROOT / "docs" / "concepts" / "measuring.md"
MAIN = re.compile(r"^if __name__ == \"__main__\":", re.MULTILINE)


def test_the_page_names_each_command() -> None:
    commands = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "benchmarks").rglob("*.py")
        if path.name == "__main__.py" or MAIN.search(path.read_text(encoding="utf-8"))
    ]
    listed = re.findall(r"`(benchmarks/[\w/]+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(commands)
