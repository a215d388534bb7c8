"""What the documentation says of itself: its links lead somewhere, the files that it names exist, its Python runs."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests import ROOT, starting
from tools import markdown_lines

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "benchmarks" not in page.parent.parts),
]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SUFFIXES = r"(?:py|h|cc|cu|cuh|md|sh|txt|toml|yml|png)"
FILE = re.compile(rf"`((?:[\w.-]+/)*[\w*.-]+\.{SUFFIXES})`")


# What a command makes, and what stands in a page for any name.
MADE = ("out/", "NAME")


@functools.cache
def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.splitlines()


def exists(name: str) -> bool:
    """Whether a file of the project has a path that ends so; ``*`` stands for anything."""
    return any(fnmatch.fnmatch("/" + path, "*/" + name) for path in tracked())


def prose(page: pathlib.Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: pathlib.Path) -> set[str]:
    """The names of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: pathlib.Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}; headings are {sorted(anchors(target))}"


def test_lines_have_120_characters_at_most() -> None:
    """Tables, code and links may have more."""
    pages = {page: page.read_text(encoding="utf-8") for page in markdown_lines.pages()}
    long = [page.name for page, text in pages.items() if markdown_lines.wrapped(text) != text]
    assert long == [], "make format"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_begin_after_an_empty_line(page: pathlib.Path) -> None:
    """The site's Markdown takes them for text otherwise, and lists in lists for more of the same list."""
    marker = r"(?:[*-]|\d+\.) "
    lines = prose(page).split("\n")
    glued = [
        line
        for before, line in itertools.pairwise(lines)
        if re.match(marker, line) and before.strip() and not re.match(rf"\s*{marker}|  ", before)
    ]
    assert not glued, f"{page.name}: put an empty line before"
    assert not [line for line in lines if re.match(rf" {{1,3}}{marker}", line)], f"{page.name}: indent by 4 spaces"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: pathlib.Path) -> None:
    named = FILE.findall(prose(page))
    missing = [name for name in named if not name.startswith(MADE) and not exists(name)]
    assert not missing, f"{page.name} names files that are not there: {missing}"


def test_the_architecture_is_one_page() -> None:
    text = [line for line in prose(ROOT / "docs" / "architecture.md").split("\n") if not line.startswith("|")]
    assert len(" ".join(text).split()) <= 1200, "say it in the page of the part, in docs/concepts/"


def blocks() -> list[tuple[str, str]]:
    """Python that runs by itself. A block with a title is a file, which commands of its page run: test_commands.py."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match[1] == "python" and not match[2]:
                line = text.count("\n", 0, match.start()) + 1
                found.append((f"{page.relative_to(ROOT)}:{line}", match[3]))
    return found


def program(code: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JAXRING_")}
    ended = starting.run(
        [sys.executable, "-c", code],
        env=inherited | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # What a print's comment says is the beginning of what is printed.
    said = re.findall(r"^print\(.*\)  # (\d\S*)$", code, re.MULTILINE)
    assert ended.stdout.split()[: len(said)] == said


def fragment(code: str) -> None:
    """Runs it with the names that fragments use; where it names no mesh, on every rank of the axis "data"."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    names = {"jax": jax, "jnp": jnp, "jaxring": jaxring, "P": P, "mesh": mesh}

    def loss(params, batch):
        return jnp.mean((batch @ params) ** 2)

    def inside(x):
        local = names | {
            "x": x[0],
            "gradients": {"w": x[0]},
            "compute_something_else": lambda: jnp.float32(1),
            "loss": loss,
            "params": jnp.ones(4),
            "batch": x,
        }
        exec(code, local)
        return x

    if "mesh" not in code and '"data"' in code:
        mapped = jax.shard_map(inside, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
        jax.block_until_ready(jax.jit(mapped)(jnp.ones((8, 4))))
        return
    try:
        exec(code, names | {"x": jnp.ones((8, 4))})
    finally:
        jaxring.uninstall()


BLOCKS = blocks()


@pytest.mark.parametrize("code", [code for _, code in BLOCKS], ids=[name for name, _ in BLOCKS])
def test_python_of_the_pages_runs(code: str) -> None:
    code = textwrap.dedent(code)
    (program if "import " in code else fragment)(code)


def test_there_is_something_to_check() -> None:
    assert len(PAGES) >= 40
    assert len(BLOCKS) >= 15
