"""Write the table of settings into docs/settings.md, from its first row to the end of the page.

Needs `jaxring.settings` and `jaxring.plan` only. `make format` runs it.

usage: python tools/settings_page.py
"""

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The package itself imports the native module, without which the table is the same.
package = types.ModuleType("jaxring")
package.__path__ = [str(ROOT / "jaxring")]
sys.modules["jaxring"] = package

from jaxring.settings.page import markdown  # noqa: E402


def main() -> None:
    page = ROOT / "docs" / "settings.md"
    words, begins, _ = page.read_text(encoding="utf-8").partition("| JAXRING_ |")
    if not begins:
        raise SystemExit(f"{page} has no table of settings, which begins with '| JAXRING_ |'")
    page.write_text(words + markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
