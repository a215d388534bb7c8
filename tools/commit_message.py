"""Whether a commit says what it does and why: a subject of at most 72 characters, an empty line, and a body.

`pre-commit install` has git run it for each commit. Merges, and commits that are to be squashed, need no body.

usage: python tools/commit_message.py FILE
"""

from __future__ import annotations

import pathlib
import re
import sys

MOST = 72
_CUT = "# ------------------------ >8 ------------------------"
_WITHOUT_BODY = ("Merge ", "fixup! ", "squash! ", "amend! ")
_TRAILER = re.compile(r"[A-Z][A-Za-z-]+: .*")


def wrong(message: str) -> list[str]:
    """What a message lacks. Comments of git's are none of it."""
    kept = message.partition(_CUT)[0].split("\n")
    subject, *rest = "\n".join(line for line in kept if not line.startswith("#")).strip().split("\n")
    if not subject:
        return ["there is no subject"]
    found = []
    if len(subject) > MOST:
        found.append(f"the subject has {len(subject)} characters; {MOST} are the most")
    if rest and rest[0].strip():
        found.append("put an empty line after the subject")
    body = [line for line in rest if line.strip() and not _TRAILER.fullmatch(line.strip())]
    if not body and not subject.startswith(_WITHOUT_BODY):
        found.append("add a body that says why, with the numbers")
    return found


def main(arguments: list[str]) -> int:
    """Say what is wrong. The exit status is 1 then."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = wrong(pathlib.Path(arguments[0]).read_text(encoding="utf-8"))
    for each in found:
        print(f"commit message: {each}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
