"""Words that the project once used for things that have a name in the field: docs/glossary.md says which name."""

from __future__ import annotations

import re
import subprocess

from tests import ROOT

# Each as a whole word or phrase, in any case.
EARLIER = (
    "stash",
    "lookers?",
    "signs? of life",
    "strangers?",
    "connections? beside the data",
    "generations?",
    "recipes?",
    "joined calls?",
    "joint calls?",
    "carriers?",
    "pass ?desk",
    "landings?",
    "seats?",
    "whoever",
    "himself",
    "herself",
    "bells?",
    "boards?",
    "gates?",
    "desks?",
    "bur(?:y|ies|ied)",
    "complain(?:s|ed|ts?)?",
    "enrol(?:s|led)?",
    "strikes?",
    "struck",
    "joints?",
    "lumps?",
    "spread failures?",
    "spoil(?:s|ed|t)?",
    "trials?",
    "brains?",
    "outlooks?",
    "farewells?",
)
WORDS = re.compile(rf"\b({'|'.join(EARLIER)})\b", re.IGNORECASE)
# A name in two_parts or inCamels is words, too.
PARTS = re.compile(r"_|(?<=[a-z])(?=[A-Z])")
# Where the earlier words are meant, and the results of earlier runs.
MEANT = ("CHANGELOG.md", "docs/glossary.md", "docs/benchmarks/", "docs/benchmarks.md", "tests/docs/test_words.py")
# `Membership.generation` is deprecated; a plan's JSON and a run's counters keep their keys for one release.
ALLOWED = {
    "jaxring/world/membership.py": {"generation"},
    "tests/world/test_membership.py": {"generation"},
}
SUFFIXES = (".py", ".cc", ".h", ".cu", ".md", ".sh", ".toml", ".cmake", ".yml", ".mk", "Makefile")


def earlier_words(text: str) -> set[str]:
    """The earlier words in a text, in lower case."""
    return {found.lower() for found in WORDS.findall(PARTS.sub(" ", text))}


def test_the_earlier_words_are_gone():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    found = {}
    for name in files:
        if name.endswith(SUFFIXES) and not name.startswith(MEANT) and (ROOT / name).is_file():
            words = earlier_words((ROOT / name).read_text(encoding="utf-8")) - ALLOWED.get(name, set())
            if words:
                found[name] = sorted(words)
    assert not found, "docs/glossary.md has the field's words for these"


def test_words_are_found_in_names_and_prose():
    assert earlier_words("A Stash of kSignsOfLife, and the connection beside the data of_strangers") == {
        "stash",
        "signs of life",
        "connection beside the data",
        "strangers",
    }
    assert earlier_words("a landscape, a stashing, regeneration") == set()
