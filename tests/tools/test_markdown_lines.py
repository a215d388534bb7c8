"""Which lines of Markdown are wrapped, and where."""

from __future__ import annotations

import pytest

from tools.markdown_lines import MOST, wrapped

WORDS = " ".join(["word"] * 40)


def lines(text: str) -> list[str]:
    return wrapped(text).split("\n")


def test_a_paragraph_is_wrapped_from_its_first_long_line_on() -> None:
    text = f"short\n{WORDS}\nrest"
    first, *others = lines(text)
    assert first == "short"
    assert " ".join(others) == f"{WORDS} rest"
    assert len(others) == 2
    assert max(map(len, others)) <= MOST


@pytest.mark.parametrize("item", ["* ", "  - ", "12. "])
def test_an_item_keeps_its_indentation(item: str) -> None:
    first, second = lines(item + WORDS)
    assert first.startswith(item + "word")
    assert second.startswith(" " * len(item) + "word")


@pytest.mark.parametrize(
    "text",
    [
        f"| {WORDS} |",
        f"# {WORDS}",
        f"```\n{WORDS}\n\n{WORDS}\n```",
        f"    {WORDS}",
        f"[link](https://{'x' * 200})",
        f"<!-- {WORDS} -->",
    ],
)
def test_what_stays(text: str) -> None:
    assert wrapped(text) == text


def test_no_line_begins_a_list_and_code_is_not_broken() -> None:
    code = "`python -m benchmarks.cpu`"
    for room in range(80, 125):
        text = f"{'x' * room} - 3. * # + {code} {WORDS}"
        found = lines(text)
        assert " ".join(found) == text
        assert code in "\n".join(found)
        assert not [line for line in found if line.split()[0] in {"-", "3.", "*", "#", "+"}]
        assert wrapped("\n".join(found)) == "\n".join(found)
