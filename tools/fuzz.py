"""Runs every fuzz target for a while and prints a line on each: `fuzz.py BUILD SECONDS [--only NAME] [--jobs N]`.

Inputs start from the corpora in fuzz/corpus; new ones are written to BUILD/corpus. The input of a finding stays in
BUILD/findings: mend the fault, then keep the input in fuzz/corpus as a seed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
READERS = ("unauthenticated", "request", "viewer", "topology", "graphs", "trace", "saved")
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
# Limits of an input's length, time (generous, for loaded machines) and memory.
_LENGTH, _LONG = 4096, {"trace": 32768}
_LIMITS = ("-timeout=25", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=1")


def run(build: pathlib.Path, name: str, seconds: int) -> tuple[bool, str]:
    """Whether target `name` ended without a finding, and a description of its run."""
    native = build / "targets" / name
    command = [str(native)] if native.exists() else [sys.executable, str(ROOT / "fuzz" / "readers.py"), name]
    folders = [build / "corpus" / name, ROOT / "fuzz" / "corpus" / name]
    findings = build / "findings"
    for folder in (*folders, findings):
        folder.mkdir(parents=True, exist_ok=True)
    command += [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={findings}/{name}-",
        *_LIMITS,
        f"-max_len={_LONG.get(name, _LENGTH)}",
        *map(str, folders),
    ]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, check=False)
    if ran.returncode != 0:
        return False, f"{name}: a finding (exit {ran.returncode})\n{(ran.stdout + ran.stderr)[-6000:]}"
    done, covered = _DONE.search(ran.stderr), _COVERAGE.findall(ran.stderr)
    if done is None or not covered or int(done[1]) == 0:
        return False, f"{name}: it ran no input\n{ran.stderr[-2000:]}"
    edges, features, inputs = covered[-1]
    return True, f"{name}: {done[1]} runs in {done[2]} s, {edges} edges, {features} features, {inputs} inputs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("seconds", type=int)
    parser.add_argument("--only", action="append")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    names = [path.stem for path in sorted((ROOT / "fuzz").glob("*.cc"))] + list(READERS)
    ok = True
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for well, words in pool.map(lambda name: run(args.build, name, args.seconds), args.only or names):
            print(words, flush=True)
            ok &= well
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
