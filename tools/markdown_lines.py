"""Wraps the paragraphs of Markdown pages that have a line of more than 120 characters. `make format` runs it.

Tables, code, headings and what is indented as code stay, and so does what has no place to be broken at, such as a link.

usage: python tools/markdown_lines.py
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST = 120
# Results of runs, and the page that benchmarks/page.py writes of them.
LEFT = ("docs/benchmarks/", "docs/benchmarks.md")
_ITEM = re.compile(r" *(?:[*+-]|\d+\.) +")
_OTHER = re.compile(r" *(?:\||#|<|:::|>|\[\^|$)| {4}(?! *(?:[*+-]|\d+\.) )")
# A line that began with it would begin a list, a heading or such.
_BEGINNING = re.compile(r" (?=(?:[*+-]|\d+[.)]|#+|>|\||:::)(?: |$))")
_CODE = re.compile(r"`[^`\n]{1,60}`")


def pages() -> list[pathlib.Path]:
    """Every page of the project but results."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if not name.startswith(LEFT) and (ROOT / name).exists()]


def wrapped(text: str) -> str:
    """The page with lines of at most MOST characters, as far as they can be broken."""
    done: list[str] = []
    paragraph: list[str] = []
    fenced = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        if paragraph and (fence or fenced or _ITEM.match(line) or not line.strip() or _is_other(line, paragraph)):
            done += _wrap(paragraph)
            paragraph = []
        fenced ^= fence
        if fence or fenced or _is_other(line, paragraph):
            done.append(line)
        else:
            paragraph.append(line)
    return "\n".join(done + _wrap(paragraph))


def _is_other(line: str, paragraph: list[str]) -> bool:
    """Whether a line is no part of a paragraph. Within one, indentation is that of a list's item."""
    return bool(_OTHER.match(line.lstrip() if paragraph and line.strip() else line))


def _wrap(lines: list[str]) -> list[str]:
    """From the first long line on."""
    first = next((at for at, line in enumerate(lines) if len(line) > MOST), None)
    if first is None:
        return lines
    item = _ITEM.match(lines[0])
    indent = " " * (len(item[0]) if item else len(lines[0]) - len(lines[0].lstrip()))
    begin = item[0] if item and first == 0 else indent
    words = " ".join(line.strip() for line in lines[first:])
    words = words.removeprefix(begin.strip()).lstrip() if first == 0 else words
    words = _CODE.sub(lambda code: code[0].replace(" ", "\0"), words)
    words = _BEGINNING.sub("\0", words)
    made = textwrap.wrap(
        words, MOST, initial_indent=begin, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines[:first] + [line.replace("\0", " ") for line in made]


def main() -> None:
    """Write the pages."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = wrapped(before)
        if after != before:
            page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
