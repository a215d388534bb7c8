"""Print which kernel of the CUDA engine serves what, and what lies on the critical path of small all-reduces.

    python tools/gpu_kernels.py [--write]

By arithmetic from the planner's tables; nothing is measured. --write puts both tables into docs/cuda.md.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from jaxring.plan.gpu import kernels

PAGE = Path(__file__).parents[1] / "docs" / "cuda.md"


def with_tables(page: str) -> str:
    """The page with both tables as they are now: each is what follows its mark, up to an empty line."""
    for mark, lines in (("kernels", kernels.table()), ("paths", kernels.paths_table())):
        text = "\n".join(lines)
        page, count = re.subn(rf"(<!-- {mark}: tools/gpu_kernels\.py -->\n)(?:\|.*\n)*", rf"\g<1>{text}\n", page)
        assert count == 1, f"docs/cuda.md has no mark for the table of {mark}"
    return page


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(with_tables(PAGE.read_text()))
    print("\n".join([*kernels.table(), "", *kernels.paths_table()]))


if __name__ == "__main__":
    main()
