"""Translate a PTX file to C++: its kernels, dealt over FILES files named OUT_0.cc and so on, and counts in OUT.json.

usage: python -m tools.ptx PTX OUT FILES
"""

import json
import sys
from pathlib import Path

from tools.ptx.emit import write
from tools.ptx.mutations import MUTATIONS
from tools.ptx.parse import RefusedError, parse


def main(source: Path, out: str, files: int) -> None:
    texts, used = write(parse(source, source.read_text()), MUTATIONS)
    print(f"{source.name}: {len(texts)} kernels, {used.total()} instructions of {len(used)} forms translated")
    Path(f"{out}.json").write_text(json.dumps({"kernels": list(texts), "forms": used}))
    # The longest ones first, each to the file that is shortest so far.
    dealt = [""] * files
    for text in sorted(texts.values(), key=len, reverse=True):
        shortest = min(range(files), key=lambda i: len(dealt[i]))
        dealt[shortest] += text
    for i, text in enumerate(dealt):
        Path(f"{out}_{i}.cc").write_text(text)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except RefusedError as refusal:
        sys.exit(str(refusal))
