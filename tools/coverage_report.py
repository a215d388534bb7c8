"""Print which part of the lines of Python and C++ the tests have executed, and write Python's pages.

Reads build/coverage/python.data (`make pytest COVERAGE=ON`) and build/coverage/cxx.json (gcovr's summary).
"""

from __future__ import annotations

import io
import json
import pathlib

import coverage

FOLDER = pathlib.Path("build/coverage")


def main() -> None:
    if (FOLDER / "python.data").exists():
        measured = coverage.Coverage()
        measured.load()
        percent = measured.report(file=io.StringIO())
        measured.html_report()
        print(f"Python, jaxring/: {percent:.1f} % of lines; {FOLDER}/python/index.html")
    else:
        print("Python: not measured; run `make pytest COVERAGE=ON` with Python 3.12 or later")
    cxx = json.loads((FOLDER / "cxx.json").read_text())
    print(
        f"C++, ffi/ without bind and xla, which need Python: {cxx['line_percent']:.1f} % of lines; "
        f"{FOLDER}/cxx/index.html"
    )


if __name__ == "__main__":
    main()
