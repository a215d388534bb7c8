"""Print what a development environment needs, from pyproject.toml: one requirement per line, for pip.

The project's dependencies, the extras but "ci", "docs" and "release", and the build requirements but jaxlib (see
tools/ffi_headers.py). With the name of an extra: what that extra needs; with "build": the build requirements.

usage: python tools/requirements.py [EXTRA]
"""

import sys
import tomllib
from pathlib import Path


def main(*extra: str) -> None:
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    requirements = [r for r in pyproject["build-system"]["requires"] if not r.startswith("jaxlib==")]
    if extra:
        print("\n".join(requirements if extra[0] == "build" else extras[extra[0]]))
        return
    requirements += pyproject["project"]["dependencies"]
    # `make ci-tools`, `make docs` and tools/wheels.sh install what they need, which nothing else does.
    for name, needs in extras.items():
        requirements += needs if name not in ("ci", "docs", "release") else []
    print("\n".join(dict.fromkeys(requirements)))


if __name__ == "__main__":
    main(*sys.argv[1:])
