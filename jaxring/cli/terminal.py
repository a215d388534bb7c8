"""The command's standard streams: terminals of any encoding and width, and readers that close the pipe."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import re
import sys
import textwrap
from typing import TYPE_CHECKING

from jaxring.bench.table import width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# Replacements of one character each, so that columns stay aligned.
_PLAIN = {"→": ">", "·": ";", "…": "~", "°": "'"}
_ERRORS = "jaxring.plain"


def survive_encoding() -> None:
    """Have characters that the streams' encoding lacks written in ASCII."""
    codecs.register_error(_ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_ERRORS)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


def drop_output() -> None:
    """The reader has closed the pipe: discard buffered output, or Python reports an error at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def wrapped(text: str, indent: str = "  ") -> str:
    """A sentence in lines that fit stdout's terminal, all but the first indented; as it is where stdout is none."""
    width = width_of()
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False) if width else text


class Help(argparse.HelpFormatter):
    """Help whose description is a module's docstring: its paragraphs fit the terminal, and examples stay lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n\n+", text.strip("\n"))
        return "\n\n".join("\n".join(_fitting(paragraph, width, indent)) for paragraph in paragraphs)


def _fitting(paragraph: str, width: int, indent: str) -> Iterator[str]:
    if not paragraph.startswith(" "):
        # What stands in backquotes is a command or a call, which is not divided.
        whole = re.sub(r"`[^`]*`", lambda quoted: re.sub(r"\s+", "\0", quoted[0]), paragraph)
        for line in textwrap.wrap(whole, width - len(indent), break_on_hyphens=False):
            yield indent + line.replace("\0", " ")
        return
    below = f"{indent}{'':12}"
    for line in paragraph.split("\n"):
        if len(indent + line) <= width:
            yield indent + line
            continue
        example, _, comment = line.lstrip().partition("  ")
        first = f"{indent}{'':4}"
        # A command of several lines, as a shell takes it.
        parts = textwrap.TextWrapper(width - 2, first, below, break_on_hyphens=False, break_long_words=False).wrap(
            example
        )
        yield from (f"{part} \\" for part in parts[:-1])
        yield parts[-1]
        yield from textwrap.wrap(comment.lstrip(), width, initial_indent=below, subsequent_indent=below)
