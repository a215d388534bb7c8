"""One process of `jax_tests.py`: runs a JAX test file as a script and writes a JSON line for each test.

python jax_tests_worker.py RESULTS TEST_FILE [--install=lax|whole] [flags for the test file...]
"""

from __future__ import annotations

import json
import pathlib
import runpy
import sys
import unittest
from typing import Any

import jax

import jaxring
from jaxring.runtime.explain import notes
from jaxring.tracing import primitives


def reasons() -> dict[str, int]:
    """The number of calls that kept JAX's own lowering, by primitive and reason."""
    counts: dict[str, int] = {}
    for text, count in notes().items():
        call, _, why = text.replace(": XLA's own", ": JAX's own").partition(": JAX's own collective: ")
        if not why:
            continue
        primitive = call.split(" ", 1)[0]
        key = f"{primitive}: {why}"
        counts[key] = counts.get(key, 0) + count
    return counts


def in_jax_words(text: str) -> str:
    """A lowered program with our ragged_all_to_all calls named as JAX names its own, for tests that read it."""
    return text.replace("custom_call @jaxring_ragged_all_to_all(", "custom_call @ragged_all_to_all(")


def lift_ragged(case: type[unittest.TestCase]) -> None:
    """Lets JAX's ragged_all_to_all tests run on CPU, by removing their setUp, which only skips them there."""
    if "setUp" in vars(case):
        del case.setUp
        original = jax.stages.Lowered.as_text
        jax.stages.Lowered.as_text = lambda self, *args, **kwargs: in_jax_words(original(self, *args, **kwargs))


def count_lowered() -> list[str]:
    """A list to which the name of each lowered custom call of ours is appended."""
    names: list[str] = []
    original = jax.ffi.ffi_lowering

    def counted(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("jaxring_"):
            names.append(name)
        return original(name, *args, **kwargs)

    jax.ffi.ffi_lowering = counted
    return names


def main() -> None:
    results, test, *flags = sys.argv[1:]
    install = next((flag.partition("=")[2] for flag in flags if flag.startswith("--install=")), "")
    output = pathlib.Path(results)
    original = unittest.TestCase.run

    def write(**record: Any) -> None:
        with output.open("a") as lines:  # line by line, so that a crash loses none
            lines.write(json.dumps(record) + "\n")

    def bad(result: Any) -> tuple[int, int]:
        return len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses), len(result.skipped)

    def recorded(self: unittest.TestCase, result: Any = None) -> Any:
        name = f"{type(self).__name__}.{self._testMethodName}"
        write(begin=name)
        if install and type(self).__name__ == "RaggedCollectiveTest":
            lift_ragged(type(self))
        failed, skipped = bad(result)
        operations, calls = jaxring.counters()["operations"], len(lowered)
        returned = original(self, result)
        outcome = "failed" if bad(result)[0] > failed else "skipped" if bad(result)[1] > skipped else "passed"
        operations = jaxring.counters()["operations"] - operations
        write(test=name, result=outcome, operations=operations, calls=len(lowered) - calls)
        return returned

    unittest.TestCase.run = recorded
    lowered = count_lowered()
    # Many of JAX's tests have axes of one device.
    primitives.lone_ranks_call = True
    if install:
        jaxring.install(whole_program=install == "whole")
    sys.argv = [test, *(flag for flag in flags if not flag.startswith("--install="))]
    try:
        runpy.run_path(test, run_name="__main__")
    finally:
        write(kept=reasons())


if __name__ == "__main__":
    main()
