"""Break the translated kernels in one place after another: a test must fail, or the translator must refuse them.

BUILD is a CMake build folder in which ptx_tests has been built and, unless it is ThreadSanitizer's (--races), run.
Prints how many instructions were translated and what noticed each mutation, compares the counts with the table in
docs/cuda.md (or writes it there), and fails if a kernel was not played, a mutation not noticed or a count is another.

usage: python -m tools.ptx.check BUILD [--jobs JOBS] [--races | --write]
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.ptx.emit import write
from tools.ptx.mutations import KINDS, MUTATIONS, REFUSED, Mutation
from tools.ptx.parse import RefusedError, parse

PAGE = Path(__file__).parents[2] / "docs" / "cuda.md"
_CPU_SECONDS = 15  # of a test with a mutation at most; one that hangs has noticed it
_RACE = 66  # ThreadSanitizer's exit status


def refusal(build: Path, stem: str, pattern: str, becomes: str) -> str:
    """The translator's words; empty if it has translated the changed text."""
    text, places = re.subn(pattern, becomes, (build / "ptx" / f"{stem}.ptx").read_text(), count=1)
    if not places:
        return ""
    try:
        write(parse(Path(f"{stem}.ptx"), text))
    except RefusedError as error:
        return str(error)
    return ""


def noticed(build: Path, number: int, mutation: Mutation) -> str:
    """What a test says of a mutation; empty if it passes, or says nothing of a race that it must find."""
    done = subprocess.run(
        [(build / "native_tests" / mutation.test).absolute(), mutation.case],
        env={**os.environ, "PTX_MUTATION": str(number), "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS)),
    )
    if mutation.race:
        return "ThreadSanitizer reports a race" if done.returncode == _RACE else ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return (said[-1] if said else f"exit status {done.returncode}") if done.returncode else ""


def tried(build: Path, jobs: int, races: bool) -> Iterator[tuple[str, str, str]]:
    """(kind, what, what noticed it) of each mutation."""
    if not races:
        for what, *change in REFUSED:
            yield "refused", what, refusal(build, *change)
    chosen = [(number, each) for number, each in enumerate(MUTATIONS) if each.race == races]
    with ThreadPoolExecutor(jobs) as pool:
        answers = pool.map(lambda item: noticed(build, *item), chosen)
        for (_, mutation), answer in zip(chosen, answers, strict=True):
            yield mutation.kind, mutation.what, answer


def compiler(build: Path) -> str:
    nvcc = re.search(r"^JAXRING_NVCC:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    said = subprocess.run([nvcc[1] if nvcc else "nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"\bV([\d.]+)", said)
    return f"nvcc {version[1] if version else 'unknown'}"


def table(build: Path) -> list[str]:
    kernels: list[str] = []
    forms: Counter[str] = Counter()
    for path in sorted((build / "ptx").glob("*.json")):
        found = json.loads(path.read_text())
        kernels += found["kernels"]
        forms.update(found["forms"])
    missing = set(kernels) - set((build / "ptx" / "played").read_text().split())
    if missing:
        sys.exit(f"no test has played {', '.join(sorted(missing))}")
    rows = [
        (f"{compiler(build)}, sm_90", ""),
        ("---", "--:"),
        ("kernels translated, and played by the tests", f"{len(kernels)}"),
        ("instructions", f"{forms.total():,}"),
        ("forms: an opcode with the shapes of its operands", f"{len(forms)}"),
    ]
    counts = Counter(each.kind for each in MUTATIONS) + Counter(refused=len(REFUSED))
    rows += [(f"mutations caught: {text}", f"{counts[kind]}") for kind, text in KINDS.items()]
    return [f"| {what} | {count} |".replace("| --- | --: |", "|---|--:|") for what, count in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--races", action="store_true", help="BUILD is ThreadSanitizer's: what it alone notices")
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args()
    caught = total = 0
    for kind, what, answer in tried(options.build, options.jobs, options.races):
        print(f"{kind}: {what}: {answer or 'NOT NOTICED'}", flush=True)
        caught += bool(answer)
        total += 1
    print(f"{caught} of {total} mutations of the PTX caught")
    if options.races:
        sys.exit(caught != total)
    rows = table(options.build)
    print("\n".join(rows))
    mark = "<!-- ptx: python -m tools.ptx.check BUILD --write -->\n"
    before, _, after = PAGE.read_text().partition(mark)
    known = "".join(re.findall(r"\A(?:\|.*\n)*", after)[:1])
    now = "\n".join(rows) + "\n"
    if options.write:
        PAGE.write_text(before + mark + now + after.removeprefix(known))
    elif known and rows[0] not in known:
        print(f"docs/cuda.md has another nvcc's table: {known.partition(chr(10))[0]} Not compared.")
    elif known != now:
        sys.exit("docs/cuda.md has other counts: python -m tools.ptx.check BUILD --write")
    sys.exit(caught != total)


if __name__ == "__main__":
    main()
