"""The example of groups that train by themselves, in two processes."""

from __future__ import annotations

import os
import re
import sysconfig

import pytest

from tests import ROOT, starting

pytest.importorskip("optax")  # it comes with the extra "test"

COMMAND = [f"{sysconfig.get_path('scripts')}/jaxring", "run", "-n", "2", "--output", "rank0"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_diloco_lm():
    done = starting.run(
        [*COMMAND, "examples/diloco_lm.py", "--compress", "int8", "--width", "64", "--layers", "1"],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},  # its 60 steps take longer than what compiles them
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parallel, local = (float(found) for found in re.findall(r"([0-9.]+) bytes a token", done.stdout)[1:])
    # Twenty times fewer values, in a quarter of the bytes; a fragment's last block is filled up.
    assert 0 < local < parallel / 60
