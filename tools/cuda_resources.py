"""Check the compiled kernels of the CUDA engine in a CMake build folder.

For every kernel on every architecture ptxas must report no spills and no stack, registers and shared memory within
limits, and the numbers of the checked-in table. With --sass the machine code for sm_90, read by cuobjdump (with
nvdisasm), must also have 16-byte loads and stores in the data paths and the protocols' memory-order instructions; its
loops over data must fit an instruction cache, and its size and theirs are in the table, too.
Prints a table, and exits with 1 if a check fails.

usage: python tools/cuda_resources.py BUILD [--sass CUOBJDUMP] [--table FILE | --write FILE]
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# A multiprocessor has 65536 registers for one block of the engine: registers per thread times the most threads.
REGISTER_LIMITS = {
    "PlayKernel": 168,
    "FusedKernel": 168,
    "OneShotKernel": 168,
    "AnyOneShotKernel": 168,
    "PointToPointKernel": 168,
    "ExtentsKernel": 168,
    "MulticastKernel": 168,
}
# Accumulators of four vectors a pack, or of any number, or a launch that copies its buffers: at most 256 threads.
REGISTER_LIMIT_WIDE = 255
SHARED_LIMIT = 8 * 1024
# A multiprocessor's cache of instructions has some 128 KiB, and a loop over data must fit it. The loop with an epilogue
# has the code of all widths, dtypes and functions, of which a launch runs a small part.
LOOP_LIMIT, EPILOGUE_LOOP_LIMIT = 96 * 1024, 160 * 1024

# By the number of the enumerator.
DTYPES = re.findall(
    r"^  k(\w+?)(?: = 0)?,$", (Path(__file__).parents[1] / "ffi/reduce/dtypes.h").read_text(), re.MULTILINE
)

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
KERNEL = re.compile(
    r"(PlayKernel|StagedKernel|(?:Staged)?FusedKernel|AnyOneShotKernel)I(?:NS\d*_\d+([A-Za-z]\w*?)E)?Li(\d)E"
)
# The dtype is the number of an enumerator.
ONE_SHOT = re.compile(r"OneShotKernelILNS_5DTypeE(\d+)ELi(\d)E")
# Of all widths.
EPILOGUE = re.compile(r"((?:Staged)?EpilogueKernel)INS\d*_\d+([A-Za-z]\w*?)EE")
# Kernels without template parameters, and their protocols.
PLAIN = {"PointToPointKernel": "Simple", "ExtentsKernel": "", "MulticastKernel": ""}

# Instructions that a kernel's code must have, by protocol: 16-byte loads and stores of memory and slots, and the
# instructions that order them.
VECTORS = {"loads": r"LDG\.E\.(?:NA\.)?128", "stores": r"STG\.E\.128"}
ORDER = {
    "Simple": {
        "acquire": r"LDG\.E\.64\.STRONG\.SYS",
        "release": r"MEMBAR(?:\.\w+)*\.SYS",
        "slot loads": r"LDG\.E\.128\.STRONG\.SYS",
    },
    "Slots": {
        "acquire": r"LDG\.E\.64\.STRONG\.SYS",
        "release": r"MEMBAR(?:\.\w+)*\.SYS",
        "slot loads": r"LDG\.E\.128\.STRONG\.SYS",
    },
    "LL": {"line loads": r"LDG\.E\.128\.STRONG\.SYS", "line stores": r"STG\.E\.128\.STRONG\.SYS"},
    "LL128": {"line loads": r"LDG\.E\.128\.STRONG\.SYS", "line stores": r"STG\.E\.128\.STRONG\.SYS"},
}


# Instructions on all replicas of multicast memory, for vectors but for integers. (A fence between aliases is several
# ordinary fences.)
MULTICAST = {
    "reduced loads": r"LDGMC\.E\.ADD\.F32x4\.RN\.STRONG\.SYS",
    "reduced halves": r"LDGMC\.E\.F32ADD\.F16x8\.RN\.STRONG\.SYS",
    "reduced keys": r"LDGMC\.E\.MIN\.S32\.STRONG\.SYS",
    "stores to all": r"STG\.E\.128\.STRONG\.SYS",
}
# Instructions of kernels that may use bulk copies: the copies, the fence before them, and the wait until their bytes
# are stored and not only read, which also invalidates the first-level cache.
BULK = {
    "bulk loads": r"UBLKCP\.S\.G",
    "bulk stores": r"UBLKCP\.G\.S",
    "bulk commits": r"UTMACMDFLUSH",
    "bulk fence": r"FENCE\.VIEW\.ASYNC\.G",
    "wait for bulk stores": r"DEPBAR\.LE SB0, 0x0 ;[^;]*;?[^;]*CCTL\.IVALL",
}


INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?;)")
BRANCH = re.compile(r"\bBRA(?:\.\w+)* .*?(0x[0-9a-f]+)")


class Kernel(NamedTuple):
    name: str
    arch: str
    registers: int
    stack: int
    spills: int
    shared: int
    wide: bool


def readable(symbol: str) -> tuple[str, str, int | None]:
    """(kernel, protocol or '', width or None) of a mangled name."""
    for name, protocol in PLAIN.items():
        if name in symbol:
            return name, protocol, 0
    if one_shot := ONE_SHOT.search(symbol):
        return "OneShotKernel", DTYPES[int(one_shot[1])], int(one_shot[2])
    if epilogue := EPILOGUE.search(symbol):
        return epilogue[1], epilogue[2], None
    found = KERNEL.search(symbol)
    if found is None:
        raise SystemExit(f"{symbol} is not a kernel that this script knows: add it to the script's tables")
    return found[1], found[2] or "", int(found[3])


def named(kind: str, detail: str, width: int | None) -> str:
    """As C++ writes it."""
    return f"{kind}<{', '.join(str(each) for each in (detail or None, width) if each is not None)}>"


def resources(build: Path) -> list[Kernel]:
    kernels: list[Kernel] = []
    logs = sorted((build / "cuda").glob("*.ptxas"))
    if not logs:
        raise SystemExit(f"there are no *.ptxas files in {build / 'cuda'}: build the target jaxring_cuda first")
    for log in logs:
        entry: tuple[str, str] | None = None
        stack = spills = 0
        for line in log.read_text().splitlines():
            if found := ENTRY.search(line):
                entry = (found[1], found[2])
            elif found := STACK.search(line):
                stack, spills = int(found[1]), int(found[2]) + int(found[3])
            elif entry is not None and (found := USED.search(line)):
                shared = SHARED.search(line)
                kind, protocol, width = readable(entry[0])
                wide = kind.startswith(("Staged", "Epilogue")) or (kind != "OneShotKernel" and width == 4)
                name = named(kind, protocol, width)
                kernels.append(
                    Kernel(name, entry[1], int(found[1]), stack, spills, int(shared[1]) if shared else 0, wide)
                )
                entry = None
    return kernels


def check_resources(kernels: list[Kernel]) -> list[str]:
    faults = []
    for k in kernels:
        limit = REGISTER_LIMIT_WIDE if k.wide else REGISTER_LIMITS[k.name.split("<")[0]]
        if k.stack or k.spills:
            faults.append(f"{k.name} for {k.arch} has {k.stack} bytes of stack and {k.spills} bytes of spills")
        if k.registers > limit:
            faults.append(f"{k.name} for {k.arch} takes {k.registers} registers, more than {limit}")
        if k.shared > SHARED_LIMIT:
            faults.append(f"{k.name} for {k.arch} takes {k.shared} bytes of shared memory, more than {SHARED_LIMIT}")
    return faults


def compiler(build: Path) -> str:
    """The version of ptxas, which decides on registers."""
    nvcc = re.search(r"^JAXRING_NVCC:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    said = subprocess.run([nvcc[1] if nvcc else "nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return said.strip().splitlines()[-1]


def table(kernels: list[Kernel]) -> list[str]:
    return [
        f"{k.arch:7} {k.name:29} {k.registers:4} registers {k.shared:6} bytes shared {k.spills:5} spilled"
        for k in sorted(kernels, key=lambda k: (k.arch, k.name))
    ]


def loop_bytes(code: list[tuple[int, str]]) -> int:
    """The longest of the innermost loops with 16-byte loads and stores, from its first instruction to its last."""
    loads = [at for at, what in code if re.search(VECTORS["loads"], what) or "LDG.E.128.STRONG" in what]
    stores = [at for at, what in code if re.search(VECTORS["stores"], what)]
    loops = []
    for at, what in code:
        if (found := BRANCH.search(what)) and int(found[1], 16) < at:
            begin = int(found[1], 16)
            if any(begin <= x <= at for x in loads) and any(begin <= x <= at for x in stores):
                loops.append((begin, at + 16))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return max((end - begin for begin, end in inner), default=0)


def code_rows(build: Path, cuobjdump: str) -> tuple[list[str], list[str]]:
    """The table's rows of code sizes for sm_90, and the loops that are too long."""
    rows, faults = [], []
    for symbol, text in disassembled(build, cuobjdump):
        kind, detail, width = readable(symbol)
        name = named(kind, detail, width)
        code = [(int(at, 16), what) for at, what in INSTRUCTION.findall(text)]
        # What follows the last exit is padding and never runs.
        size, loop = code[-1][0] + 16, loop_bytes(code)
        rows.append(f"sm_90   {name:29} {size:7} bytes of code {loop:6} in a loop over data")
        limit = EPILOGUE_LOOP_LIMIT if kind.endswith("EpilogueKernel") else LOOP_LIMIT
        if loop > limit:
            faults.append(f"{name} for sm_90 has a loop over data of {loop} bytes, more than {limit}")
    return sorted(rows), faults


def check_table(rows_now: list[str], archs: tuple[str, ...], build: Path, path: Path) -> list[str]:
    """Rows that differ from the table's, for the architectures that were built."""
    made_by, *known = path.read_text().splitlines()
    if made_by != compiler(build):
        print(f"{path} was written with {made_by}, this is {compiler(build)}: not compared")
        return []
    sized = any("bytes of code" in row for row in rows_now)
    rows = {row for row in known if row.startswith(archs) and (sized or "bytes of code" not in row)}
    changed = sorted(rows.symmetric_difference(rows_now))
    return [f"not as in {path} (write it anew with --write): {row}" for row in changed]


@functools.cache
def disassembled(build: Path, cuobjdump: str) -> list[tuple[str, str]]:
    """(mangled name, text of its machine code) of each kernel for sm_90."""
    found = []
    for built in sorted((build / "cuda").glob("*.o")):
        text = subprocess.run([cuobjdump, "--dump-sass", "-arch", "sm_90", built], capture_output=True, text=True)
        if text.returncode:
            raise SystemExit(f"{cuobjdump} cannot read {built}: {text.stderr.strip()}")
        found += [(part.split(None, 1)[0], part) for part in text.stdout.split("Function : ")[1:]]
    if not found:
        raise SystemExit(f"no machine code for sm_90 in {build / 'cuda'}")
    return found


def check_sass(build: Path, cuobjdump: str) -> list[str]:
    faults = []
    kernels = disassembled(build, cuobjdump)
    for symbol, part in kernels:
        kind, protocol, width = readable(symbol)
        # The kernel that checks sizes moves no data.
        wanted = dict(VECTORS) if kind != "ExtentsKernel" else {"release": ORDER["Simple"]["release"]}
        # Fused collectives wait for epoch barriers as for Simple's counters; the one-shot all-reduces store LL lines.
        if protocol in ORDER:
            wanted |= ORDER[protocol]
        fused = kind.endswith("FusedKernel")
        if protocol == "Simple" or (fused and width == 0):
            wanted |= BULK
        elif fused:
            wanted |= {key: ORDER["Simple"][key] for key in ("acquire", "release")}
        elif kind in ("OneShotKernel", "AnyOneShotKernel"):
            wanted |= ORDER["LL"]
        elif kind == "MulticastKernel":
            wanted |= {key: ORDER["Simple"][key] for key in ("acquire", "release")} | MULTICAST
        for what, pattern in wanted.items():
            if not re.search(pattern, part):
                faults.append(f"{named(kind, protocol, width)} for sm_90 shows no {what} ({pattern})")
        if re.search(r"\b(LDL|STL)\b", part):
            faults.append(f"{named(kind, protocol, width)} for sm_90 uses local memory")
    print(f"machine code of {len(kernels)} kernels for sm_90 read")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--sass", metavar="CUOBJDUMP")
    parser.add_argument("--table", type=Path, metavar="FILE", help="compare with this table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table")
    options = parser.parse_args()
    kernels = resources(options.build)
    rows = table(kernels)
    faults = check_resources(kernels)
    if options.sass:
        sizes, too_long = code_rows(options.build, options.sass)
        rows += sizes
        faults += too_long
    print("\n".join(rows))
    if options.write:
        options.write.write_text("\n".join([compiler(options.build), *rows]) + "\n")
    if options.table:
        faults += check_table(rows, tuple({k.arch for k in kernels}), options.build, options.table)
    if options.sass:
        faults += check_sass(options.build, options.sass)
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
