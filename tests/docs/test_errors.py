"""docs/reference/errors.md has every class of error and every code, with what to do."""

from __future__ import annotations

import re

import jaxring
from jaxring.plan.schedule import ScheduleError
from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
# The rows of the tables, by the names in their first cell.
ROWS = {
    name: [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
    for name in re.findall(r"`(\w+)`", line.split("|")[1])
}


def test_every_class_is_on_the_page_with_its_bases_and_what_to_do() -> None:
    public = {
        value
        for name in jaxring.__all__
        if isinstance(value := getattr(jaxring, name), type) and issubclass(value, (Exception, Warning))
    }
    for found in public | {ScheduleError}:
        _, bases, when, todo = ROWS[found.__name__]
        assert set(re.findall(r"`(\w+)`", bases)) == {b.__name__ for b in found.__bases__} - {"JaxringError"}
        assert when
        assert todo


def test_every_error_of_ours_is_public() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "jaxring").rglob("*.py"))
    bases = {
        name: set(re.findall(r"\w+", of))
        for text in sources
        for name, of in re.findall(r"class (\w+)\(([^)]*)\):", text)
    }
    ours = {"JaxringError"}
    while more := {name for name, of in bases.items() if of & ours} - ours:
        ours |= more
    assert len(ours) > 3
    assert ours <= set(jaxring.__all__)


def test_every_code_of_the_engine_is_on_the_page() -> None:
    status = (ROOT / "ffi" / "base" / "status.h").read_text(encoding="utf-8")
    codes = {name for name in re.findall(r"\bk([A-Z]\w+)\s*=\s*\d+", status) if name != "Ok"}
    assert len(codes) > 5
    assert {re.sub(r"(?<!^)(?=[A-Z])", "_", code).upper() for code in codes} == {
        name for name in ROWS if name.isupper()
    }
