"""Private JAX names live in one place."""

from __future__ import annotations

import pathlib
import re

import jaxring
import jaxring_plugin

PACKAGE = pathlib.Path(jaxring.__file__).parent
PLUGIN = pathlib.Path(jaxring_plugin.__file__)
PRIVATE = re.compile(r"^\s*(?:from|import)\s+(?:jax\._|jaxlib\._|jax\.\S*\._)", re.MULTILINE)


def test_only_compat_imports_private_names_of_jax() -> None:
    files = sorted([PLUGIN, *PACKAGE.rglob("*.py")])
    assert len(files) > 20
    offenders = [str(f.relative_to(PACKAGE.parent)) for f in files if PRIVATE.search(f.read_text())]
    assert offenders == ["jaxring/_compat.py"]
