"""Makes the helpers importable, which are those of the stress tests."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "stress"))
