"""mkdocs.yml, of which `make docs` builds the site: every page is in its navigation, once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
DOCS = ROOT / "docs"


def places(entry: Any) -> Iterator[str]:
    """The pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from places(inner)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = list(places(SITE["nav"]))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    # What a run on a GPU has written of itself.
    pages = {page for page in pages if not page.startswith("benchmarks/h200/2")}
    assert len(listed) == len(set(listed))
    assert {page for page in listed if not page.startswith("project/")} == pages


def test_the_site_needs_nothing_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    fetched = [name for name in ("extra_javascript", "extra_css") if any("//" in path for path in SITE.get(name, []))]
    assert fetched == []


def test_warnings_are_errors() -> None:
    """Not with ``--quiet``, which takes the warnings away before they are counted."""
    assert re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text()) == ["mkdocs build --strict"]
