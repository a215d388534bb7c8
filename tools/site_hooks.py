"""What MkDocs has to be told so that one set of pages works in the repository and as a site: hooks of mkdocs.yml.

The pages link to each other by their paths in the repository. On the site the pages from outside docs/ are in
``project/``, and a link to any other file out there becomes its text, because the site has no such file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# The pages from outside docs/, and where the site has them.
OUTSIDE = {path: PurePosixPath("project") / path.name for path in sorted(ROOT.glob("*.md"))}
OUTSIDE[ROOT / "examples" / "README.md"] = PurePosixPath("project/EXAMPLES.md")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# A cell of a table without a word.
NUMBERS = re.compile(r"<td(?=[^>]*>[^<a-zA-Z]*[0-9][^<a-zA-Z]*</td>)")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def heading_name(heading: str, separator: str) -> str:
    """The name by which a link finds a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Names headings as GitHub does."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = heading_name
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs/."""
    from mkdocs.structure.files import File  # the tests of the other functions need no MkDocs

    for path, place in OUTSIDE.items():
        files.append(File.generated(config, str(place), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrites the links between pages inside docs/ and outside. The search prefers pages that answer users."""
    place = PurePosixPath(page.file.src_uri)
    if place.parts[0] in ("howto", "start", "faq.md"):
        page.meta["search"] = {"boost": 2}
    source = next((path for path, there in OUTSIDE.items() if there == place), ROOT / "docs" / place)
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_linked(markdown[end : fence.start()], source, place), fence[0]]
        end = fence.end()
    return "".join([*parts, _linked(markdown[end:], source, place)])


def on_page_content(html: str, **_: Any) -> str:
    """Keeps tables' numbers from the search: nobody looks for them, and lunr confuses endings of digits.

    Among very many numbers some beginnings, as the 2 of "2 hosts", lead to a word that its index does not have, and
    then it finds nothing at all. `make site-search` asks for each beginning.
    """
    return NUMBERS.sub("<td data-search-exclude", html)


def _linked(prose: str, source: Path, place: PurePosixPath) -> str:
    """``prose`` of the page that is ``source`` in the repository and ``place`` on the site."""

    def one(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        if re.match(r"[a-z]+:", path):
            return link[0]
        target = Path(os.path.normpath(source.parent / path))
        if target.is_dir():
            target /= "README.md"
        there = OUTSIDE.get(target)
        if target.is_relative_to(ROOT / "docs"):
            there = PurePosixPath(target.relative_to(ROOT / "docs"))
        return f"[{text}]({os.path.relpath(there, place.parent)}{anchor})" if there else text

    return LINK.sub(one, prose)
