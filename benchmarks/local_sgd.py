"""Train the demo's model data parallel and by DiLoCo over slow links: bytes a token, time of a step, and the losses.

    python -m benchmarks.local_sgd --hosts 2 --rate 100mbit

starts a process on each of so many network namespaces, whose links are shaped; it needs root and iproute2. Arguments
that it does not know are those of `examples/diloco_lm.py`, which does the training and says whether the loss is near
enough.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import namespaces

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "diloco_lm.py"
_LIMIT_S = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example on the hosts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_sgd", description=__doc__.split("\n")[0])
    namespaces.add_arguments(parser, rate="100mbit", hosts=2)
    arguments, rest = parser.parse_known_args(argv)
    status = namespaces.run_or_join("benchmarks.local_sgd", arguments, argv, _LIMIT_S)
    if status is not None:
        return status
    sys.argv = [str(_EXAMPLE), *rest]
    sys.path.insert(0, str(_EXAMPLE.parent))  # as for a script
    runpy.run_path(str(_EXAMPLE), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
