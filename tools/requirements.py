"""Print what a development environment needs, from pyproject.toml: one requirement per line, for pip.

The project's dependencies, every extra, and the build requirements but jaxlib (see tools/ffi_headers.py).
"""

import tomllib
from pathlib import Path


def main() -> None:
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    requirements = [r for r in pyproject["build-system"]["requires"] if not r.startswith("jaxlib==")]
    requirements += pyproject["project"]["dependencies"]
    for extra in pyproject["project"]["optional-dependencies"].values():
        requirements += extra
    print("\n".join(dict.fromkeys(requirements)))


if __name__ == "__main__":
    main()
