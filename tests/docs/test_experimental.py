"""What GPUs have not run in every way is called experimental wherever users meet it, in the words of its one record."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from jaxring.cli import main
from jaxring.plan.gpu import experimental, tuner
from jaxring.settings.page import markdown
from tests import ROOT

if TYPE_CHECKING:
    import pathlib

MARK = experimental.EXPERIMENTAL["cuda"]
# A run's SUMMARY.md says what that run found.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "SUMMARY.md")]
# What users import, and what documents it. The rest of the package is for readers of the code.
MODULES = [
    *sorted((ROOT / "jaxring").glob("[!_]*.py")),
    *(ROOT / "jaxring" / name for name in ("_moves.py", "_reductions.py", "runtime/__init__.py")),
]
HEADING = re.compile(r"^#+ .*(?:GPU|CUDA|NVLS|H200).*$", re.MULTILINE)
ON_GPUS = re.compile(r"\b(?:on|among) GPUs\b|\bCUDA engine\b", re.IGNORECASE)
# The same said in other words, which would stay when a GPU has run it.
OTHER_WORDS = re.compile(
    r"\b(?:no|never|not|until)\b[^.;]{0,40}\bhardware\b|\bno GPU has run\b|"
    r"(?<!experimental: it has )\bnot run on a GPU\b",
    re.IGNORECASE,
)


def words(text: str) -> str:
    return " ".join(text.split())


def docstrings(path: pathlib.Path) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, documented)]
    return [words(text) for text in found if text]


def about_gpus(page: str) -> bool:
    """Whether a page has a heading that names GPUs or the CUDA engine, or is one of those that each reader meets."""
    everybodys = ("# jaxring\n", "# Settings\n", "# How jaxring is built\n")
    return page.startswith(everybodys) or HEADING.search(page) is not None


def test_pages_about_gpus_say_that_they_are_experimental() -> None:
    pages = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
    about = {name for name, text in pages.items() if about_gpus(text)}
    assert {"README.md", "docs/cuda.md", "docs/cuda-host.md", "docs/settings.md", "docs/architecture.md"} <= about
    assert {name for name, text in pages.items() if MARK in words(text)} == (about if MARK else set())


def test_docstrings_about_gpus_say_that_they_are_experimental() -> None:
    about = [text for path in MODULES for text in docstrings(path) if ON_GPUS.search(text)]
    assert len(about) >= 4
    assert [text for text in about if MARK not in text] == []


def test_no_page_and_no_module_says_it_in_other_words() -> None:
    record = ROOT / "jaxring/plan/gpu/experimental.py"
    paths = [path for path in (*PAGES, *sorted((ROOT / "jaxring").rglob("*.py"))) if path != record]
    found = {path.relative_to(ROOT).as_posix(): OTHER_WORDS.findall(words(path.read_text())) for path in paths}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_choices_on_gpus_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def reasons() -> list[str]:
        chosen = tuner.choose("all_reduce", (0, 0), 1 << 20, "float32", 16)
        switched = tuner.choose("all_reduce", (0, 0), 1 << 20, "float32", 16, "nvls", no_nvls="")
        return [chosen.reason, switched.reason, tuner.by_messages(64, 16, "there is no other way").reason]

    cuda, nvls = f"; the CUDA engine is {MARK}", f"; nvls is {experimental.NEVER}"
    for reason, text in zip(reasons(), (cuda, cuda + nvls, cuda), strict=True):
        assert reason.endswith(text)
    monkeypatch.setitem(experimental.EXPERIMENTAL, "cuda", "")
    assert [cuda in reason for reason in reasons()] == [False, False, False]
    assert [reason.endswith(nvls) for reason in reasons()] == [False, True, False]


def test_settings_of_the_cuda_engine_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [cells for line in markdown().splitlines() if len(cells := line.split(" | ")) == 5]
    assert {row[3] for row in rows if "GPU" in row[3] and "CPU" not in row[3]} == {"GPU (experimental)"}
    assert {row[0].strip("| *°") for row in rows if experimental.NEVER in row[4]} == {"ALGO"}
    monkeypatch.setitem(experimental.EXPERIMENTAL, "cuda", "")
    assert "GPU (experimental)" not in markdown()


def test_the_doctor_says_it_of_a_cuda_engine_that_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    for built, text in ((False, "not built"), (True, f"built; {MARK}")):
        found = real("jaxring") if built else None
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *more, found=found: found if name == "jaxring._native_cuda" else real(name, *more),
        )
        main(["doctor"])
        assert re.search(rf"CUDA engine\W+{re.escape(text)}", words(capsys.readouterr().out))
