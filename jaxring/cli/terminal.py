"""The command's standard streams: terminals of any encoding, and readers that close the pipe."""

from __future__ import annotations

import codecs
import io
import os
import sys

# Of one character each, so that columns stay aligned.
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
