"""Programs at which the check of random programs once failed, or hung."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests import starting

LIMIT_S = 300


def test_known_programs():
    script = Path(__file__).with_name("rnd_known.py")
    done = starting.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: each["faults"] for name, each in found.items() if each["faults"]} == {}
    message, empty, vmapped = found.values()
    assert message["refused"] == ""
    assert "XLA has no all_gather along a dimension of length 0" in empty["refused"]
    assert "the outputs' shapes are" in vmapped["refused"]
