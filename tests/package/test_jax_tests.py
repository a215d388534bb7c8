"""The tool that runs JAX's own tests, on a small tree in place of JAX's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
TESTS = """
import unittest

import jax
import jax.numpy as jnp
import jaxring
from jax.sharding import NamedSharding, PartitionSpec


class SmallTest(unittest.TestCase):
    def test_fails_in_both_ways(self):
        self.fail()

    def test_fails_with_jaxring(self):
        x = jax.device_put(jnp.ones(8), NamedSharding(jax.make_mesh((8,), ("a",)), PartitionSpec("a")))
        self.assertEqual(jax.jit(jnp.sum)(x), 8)
        self.assertEqual(jaxring.counters()["operations"], 0)

    def test_is_skipped(self):
        self.skipTest("no")

    def test_passes(self):
        self.assertEqual(jax.device_count(), 8)


unittest.main()
"""


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.sampled(2)
def test_what_is_worse_with_jaxring(tmp_path, quick):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "small_test.py").write_text(TESTS)
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "version.py").write_text('_version = "1.2"\n')
    tool = [sys.executable, str(ROOT / "tools" / "jax_tests.py"), str(tmp_path), "--whole-program"]
    command = [*tool, *(["--quick"] if quick else []), "small_test.py"]  # files last, as its help says
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    counts = done.stdout.splitlines()[1].split()
    # Passed, failed and skipped without jaxring; the same with it; tests that reached it, and in which the engine ran.
    assert counts == ["small_test.py", "1", *(["-"] * 3 if quick else ["2", "1", "1"]), "1", "2", "1", "1", "1"]
    worse = [line for line in done.stdout.splitlines() if line.startswith("WORSE")]
    assert worse == ["WORSE small_test.py (1 processes): SmallTest.test_fails_with_jaxring: passed -> failed"]
