"""Tests of the package, in folders that mirror its own; jobs of several processes and hosts in folders of theirs."""

import pathlib

ROOT = pathlib.Path(__file__).parent.parent
