"""Runs JAX's own tests of collectives twice, without and with `jaxring.install()`, and compares.

    python tools/jax_tests.py SOURCE_TREE [--whole-program] [--processes 2,4] [--report docs/jax-tests.md] [FILES...]

With --whole-program it is `jaxring.install(whole_program=True)`, and the tests are also those of programs without
collectives of their own, into which XLA's partitioner inserts some.

SOURCE_TREE is a JAX source tree; its test files are copied to a temporary folder, so that the installed jax is tested
and not the tree's. Files below tests/multiprocess run in as many processes as --processes says, with one CPU device
each; the others in one process with eight. A test "reaches" jaxring when custom calls of jaxring are lowered or run
during it, and the engine "ran" when it has run operations. Collectives of one rank, which are otherwise lowered to
nothing, become custom calls here, too.

Exits with 1 if a test passes without jaxring and not with it, if one that JAX skips on CPU fails, or if fewer tests
than wanted reach jaxring.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = pathlib.Path(__file__).resolve().parent
SINGLE = ("pmap_test.py", "shard_map_test.py", "ragged_collective_test.py")
MULTIPLE = tuple(
    f"multiprocess/{name}_test.py" for name in ("all_reduce", "all_gather", "all_to_all", "axis_index", "pmap")
)
WHOLE_SINGLE = ("pjit_test.py", "array_test.py")
WHOLE_MULTIPLE = tuple(f"multiprocess/{name}_test.py" for name in ("pjit", "array", "multihost_utils"))
# Tests that cannot pass with whole programs, by file and a part of their names, with the reason.
_COUNTS = "it counts XLA's collectives in the compiled text"
_DONATES = "jaxlib 0.10 loses donation in a module that is transformed"
WHOLE_DIFFERS = {
    ("pjit_test.py", "PJitTest.testBufferDonationDifferentIOShapes:"): _DONATES,
    ("pjit_test.py", "PJitTest.testBufferDonationWithOutputShardingInference:"): _DONATES,
    ("pjit_test.py", "ShardingInTypesTest.test_minibatch_scan_unreduced_"): _COUNTS,
    ("pjit_test.py", "ShardingInTypesTest.test_scan_over_layers_minibatch_unreduced_"): _COUNTS,
}
# The number of tests that must reach jaxring at least.
WANTED = {"pmap_test.py": 113, "shard_map_test.py": 72, "ragged_collective_test.py": 1}
DEVICES = 8
QUICK = "Without jaxring only the tests ran that fail with it. Those that fail in both ways are not listed.\n\n"


@dataclasses.dataclass
class Outcome:
    """The outcome of a test file in a run: the worst result of each test in all processes, and what reached jaxring."""

    results: dict[str, str] = dataclasses.field(default_factory=dict)
    reached: set[str] = dataclasses.field(default_factory=set)
    ran: set[str] = dataclasses.field(default_factory=set)
    kept: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    crashed: str = ""
    complete: bool = True  # whether all tests of the file were to run

    def count(self, what: str) -> int:
        return sum(result == what for result in self.results.values())


def stems(test: pathlib.Path, processes: int, install: str, folder: pathlib.Path) -> list[str]:
    """The paths, without endings, at which the processes write their results and output."""
    name = f"{test.parent.name}-{test.stem}-{processes}-{install or 'without'}"
    return [str(folder / f"{name}-{index}") for index in range(processes)]


def run(
    test: pathlib.Path,
    processes: int,
    install: str,
    folder: pathlib.Path,
    timeout: float,
    only: Sequence[str] = (),
) -> Outcome:
    """Runs a test file in ``processes`` processes, each of which writes its results to ``folder``.

    ``only``: of these tests, by class and method; of all of them where there are none.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PJRT_NPROC": str(8 * DEVICES)}
    env["JAX_NUM_CPU_DEVICES"] = str(DEVICES if processes == 1 else 1)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (str(HERE.parent), os.environ.get("PYTHONPATH", "")) if p)
    workers = []
    for index, stem in enumerate(stems(test, processes, install, folder)):
        arguments = [sys.executable, str(HERE / "jax_tests_worker.py"), stem + ".jsonl", str(test)]
        arguments += [f"--install={install}"] if install else []
        arguments += only
        if processes > 1:
            arguments += [
                f"--num_processes={processes}",
                f"--multiprocess_test_worker_id={index}",
                f"--multiprocess_test_controller_address={address}",
                "--initialization_timeout=120",
                "--heartbeat_timeout=600",
                "--shutdown_timeout=60",
            ]
        pathlib.Path(stem + ".jsonl").unlink(missing_ok=True)
        with pathlib.Path(stem + ".log").open("wb") as log:
            workers.append(subprocess.Popen(arguments, env=env, cwd=folder, stdout=log, stderr=log))
    deadline = time.monotonic() + timeout
    for worker in workers:
        try:
            worker.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    return read(stems(test, processes, install, folder))


def read(results: list[str]) -> Outcome:
    """The outcome of a run, from what its processes have written."""
    outcome = Outcome()
    for stem in results:
        collect(outcome, pathlib.Path(stem + ".jsonl"))
    return outcome


def collect(outcome: Outcome, path: pathlib.Path) -> None:
    """Adds a process's results. A test that began and has no result was cut short by a crash or by the timeout."""
    rank = {"passed": 0, "skipped": 1, "failed": 2}
    begun, ended = "", False
    for line in path.read_text().splitlines() if path.exists() else ():
        record = json.loads(line)
        if "begin" in record:
            begun = record["begin"]
        elif "test" in record:
            test, result = record["test"], record["result"]
            outcome.results[test] = max(outcome.results.get(test, "passed"), result, key=rank.__getitem__)
            if record["operations"]:
                outcome.ran.add(test)
            if record["operations"] or record["calls"]:
                outcome.reached.add(test)
            begun = ""
        else:
            ended = True
            outcome.kept.update(record["kept"])
    if begun:
        outcome.results[begun] = "failed"
    if not ended:
        outcome.crashed = f"{path.stem}: {begun or 'between tests'}"


def compare(before: Outcome, after: Outcome) -> list[str]:
    """A line for each result that is worse with jaxring."""
    worse = [
        f"{test}: {before.results.get(test, 'missing')} -> {result}"
        for test, result in sorted(after.results.items())
        if result == "failed" and before.results.get(test) != "failed"
    ]
    missing = [
        test for test, result in before.results.items() if result == "passed" and after.results.get(test) is None
    ]
    skipped = [
        test for test, result in before.results.items() if result == "passed" and after.results.get(test) == "skipped"
    ]
    worse += [f"{test}: passed -> not run" for test in missing] + [f"{test}: passed -> skipped" for test in skipped]
    return worse + ([f"crashed: {after.crashed}"] if after.crashed and not before.crashed else [])


def differs(name: str, text: str) -> str:
    """Why a test cannot pass with whole programs; "" for others."""
    return next((f" ({why})" for (file, test), why in WHOLE_DIFFERS.items() if file == name and test in text), "")


def table(rows: list[tuple[str, int, Outcome, Outcome]]) -> str:
    """The counts as text."""
    counted = ("passed", "failed", "skipped")
    head = ("file", "processes", "without: passed", *counted[1:], "with: passed", *counted[1:], "reached", "ran")
    lines = [head]
    for name, processes, before, after in rows:
        counts = [o.count(what) if o.complete else "-" for o in (before, after) for what in counted]
        lines.append((name, *map(str, (processes, *counts, len(after.reached), len(after.ran)))))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    cells = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join([line[0].strip().ljust(widths[0]), *line[1:]]) for line in cells)


def report(path: pathlib.Path, title: str, text: str) -> None:
    """Writes ``text`` as the section ``title`` of a Markdown file, in place of a former one."""
    head, *sections = path.read_text().split("\n## ") if path.exists() else ["# JAX's own tests on jaxring\n"]
    kept = {section.splitlines()[0]: section for section in sections}
    kept[title] = f"{title}\n\n{text}\n"
    path.write_text("\n## ".join([head.rstrip() + "\n", *(kept[key].rstrip() + "\n" for key in sorted(kept))]))


def versions() -> str:
    script = "import jax, jaxlib, sys; print('jax', jax.__version__ + ', jaxlib', jaxlib.__version__)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    return f"{found}, Python {sys.version_info.major}.{sys.version_info.minor}"


def named(tree: pathlib.Path) -> str:
    """A source tree's name and its version."""
    found = re.search(r'^_version = "(.*)"', (tree / "jax" / "version.py").read_text(), re.MULTILINE)
    return f"{tree.name} ({found[1] if found else 'of unknown version'})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=pathlib.Path, help="a JAX source tree")
    parser.add_argument("files", nargs="*", help="test files below the tree's tests/; all of ours by default")
    parser.add_argument(
        "--whole-program", dest="install", action="store_const", const="whole", default="lax", help="see above"
    )
    parser.add_argument("--processes", default="2,4", help="for files below multiprocess/ (default: %(default)s)")
    parser.add_argument("--report", type=pathlib.Path, help="writes the results to this Markdown file")
    parser.add_argument("--logs", type=pathlib.Path, help="keeps the processes' output in this folder")
    parser.add_argument("--reuse", action="store_true", help="takes results that a former run left in --logs")
    parser.add_argument("--quick", action="store_true", help="runs without jaxring only what fails with it")
    parser.add_argument("--timeout", type=float, default=3000.0, help="seconds per file (default: %(default)s)")
    given = parser.parse_intermixed_args()

    rows, worse, known, kept = [], [], [], collections.Counter[str]()
    with tempfile.TemporaryDirectory(prefix="jax-tests-") as temporary:
        folder = given.logs.resolve() if given.logs else pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        own = (*SINGLE, *MULTIPLE) if given.install == "lax" else (*SINGLE, *WHOLE_SINGLE, *MULTIPLE, *WHOLE_MULTIPLE)
        for name in given.files or own:
            test = pathlib.Path(temporary) / "tests" / name
            test.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(given.tree / "tests" / name, test)
            many = name.startswith("multiprocess/")
            for processes in map(int, given.processes.split(",")) if many else (1,):

                def outcome(
                    install: str, only: Sequence[str] = (), *, at: tuple[pathlib.Path, int] = (test, processes)
                ):
                    found = read(stems(*at, install, folder)) if given.reuse and not only else Outcome()
                    return found if found.results else run(*at, install, folder, given.timeout, only)

                if given.quick:
                    after = outcome(given.install)
                    failed = [name for name, result in after.results.items() if result == "failed"]
                    before = outcome("", failed) if failed else Outcome()
                    before.complete = False
                else:
                    before, after = outcome(""), outcome(given.install)
                rows.append((name, processes, before, after))
                for text in compare(before, after):
                    reason = differs(name, text) if given.install == "whole" else ""
                    (known if reason else worse).append(f"{name} ({processes} processes): {text}" + reason)
                if len(after.reached) < WANTED.get(name, 0):
                    worse.append(f"{name}: {len(after.reached)} tests reach jaxring, wanted {WANTED[name]}")
                if not after.results:
                    worse.append(f"{name}: no test ran")
                kept += after.kept
                print(table(rows[-1:]), flush=True)
    text = table(rows)
    print(f"\n{versions()}, tests of {named(given.tree)}\n\n{text}")
    for line in worse:
        print("WORSE", line)
    for line in known:
        print("KNOWN", line)
    for line, count in kept.most_common():
        print(f"JAX's own lowering, {count} times: {line}")
    if given.report:
        reasons = "".join(f"* {count}: {line}\n" for line, count in kept.most_common())
        failures = "".join(f"* {line}\n" for line in (*worse, *known)) or "None.\n"
        body = f"Tests of the source tree {named(given.tree)}.\n\n```\n{text}\n```\n\n"
        body += QUICK if given.quick else ""
        body += f"Worse with jaxring:\n\n{failures}"
        body += f"\nCalls that kept JAX's own lowering, and why:\n\n{reasons or 'None.'}"
        report(given.report, versions() + (", whole programs" if given.install == "whole" else ""), body)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
