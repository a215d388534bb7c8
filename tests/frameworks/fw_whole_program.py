"""Trains by each module's `train`, by XLA's own collectives and by jaxring's, and compares the losses of all steps.

usage: fw_whole_program.py MODULE ...
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

import jaxring

STEPS = 8


def compare(module: str) -> None:
    train = importlib.import_module(module).train
    theirs = train(STEPS)
    before = jaxring.counters()["operations"]
    with jaxring.installed(whole_program=True):
        ours = train(STEPS)
    assert jaxring.counters()["operations"] - before >= STEPS
    assert len(set(theirs)) == STEPS
    # XLA's order of addition between processes is another one.
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        compare(each)
    text = jaxring.explain()
    assert "XLA's own collective" not in text, text
    print("the same", flush=True)
