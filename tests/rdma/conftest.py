"""Makes the helpers importable: those here, and those of the jobs over several hosts."""

from __future__ import annotations

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "hosts"), str(HERE.parent / "stress")]
