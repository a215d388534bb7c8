"""What MkDocs has to be told so that one set of pages works in the repository and as a site: hooks of mkdocs.yml.

The pages link to each other by their paths in the repository. On the site the pages of the top folder are in
``project/``, and a link to any other file outside docs/ becomes its text, because the site has no such file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Where the site has the pages of the top folder.
PROJECT = PurePosixPath("project")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def heading_name(heading: str, separator: str) -> str:
    """The name by which a link finds a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Names headings as GitHub does."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = heading_name
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the top folder."""
    for path in sorted(ROOT.glob("*.md")):
        files.append(File.generated(config, str(PROJECT / path.name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrites the links that lead out of docs/, and all links of the top folder's pages."""
    place = PurePosixPath(page.file.src_uri)
    top = place.parent == PROJECT
    folder = ROOT if top else (ROOT / "docs" / place).parent
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_linked(markdown[end : fence.start()], folder, place, top), fence[0]]
        end = fence.end()
    return "".join([*parts, _linked(markdown[end:], folder, place, top)])


def _linked(prose: str, folder: Path, place: PurePosixPath, top: bool) -> str:
    def one(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        if re.match(r"[a-z]+:", path):
            return link[0]
        target = Path(os.path.normpath(folder / path))
        inside = target.is_relative_to(ROOT / "docs")
        if inside and not top:
            return link[0]
        if inside:
            there = PurePosixPath(target.relative_to(ROOT / "docs"))
        elif target.parent == ROOT and target.suffix == ".md":
            there = PROJECT / target.name
        else:
            return text
        if inside and target.is_dir():
            there /= "README.md"
        return f"[{text}]({os.path.relpath(there, place.parent)}{anchor})"

    return LINK.sub(one, prose)
