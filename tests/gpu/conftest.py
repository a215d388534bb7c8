"""Makes the helpers importable, which are those of the tests on the fake GPU."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cuda_host"))
