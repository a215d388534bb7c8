"""Private JAX names live in one place."""

from __future__ import annotations

import pathlib
import re

import jaxring

PACKAGE = pathlib.Path(jaxring.__file__).parent
PRIVATE = re.compile(r"^\s*(?:from|import)\s+(?:jax\._|jaxlib\._|jax\.\S*\._)", re.MULTILINE)


def test_only_compat_imports_private_names_of_jax() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    offenders = [str(f.relative_to(PACKAGE)) for f in files if PRIVATE.search(f.read_text())]
    assert offenders == ["_compat.py"]
