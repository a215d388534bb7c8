"""Helpers for the examples' tests: the launcher of jobs that the tests of collectives have."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "collectives"))
