"""The search box of the site, as far as that needs no browser."""

from __future__ import annotations

import json
import shutil
import threading
import types
import urllib.request

import pytest

from tests import ROOT
from tools import site_hooks, site_pictures, site_search


def test_each_question_has_a_page():
    pages = {page.removesuffix(".html") for page in site_search.QUESTIONS.values()}
    assert [page for page in pages if not (ROOT / "docs" / f"{page}.md").is_file()] == []


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site with a search; whether there is a browser is not asked."""
    worker = tmp_path / "assets/javascripts/workers/search.1.min.js"
    worker.parent.mkdir(parents=True)
    worker.touch()
    (tmp_path / "index.html").touch()
    monkeypatch.setattr(site_pictures, "SITE", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: name)


def get(address):
    with urllib.request.urlopen(address) as answer:
        return answer.read().decode()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("question", "pages", "code", "fault"),
    [
        ("why slow", ["howto/slow.html", "faq.html"], 0, ""),
        ("why slow", ["faq.html"], 1, " - not howto/slow.html first"),
        ("why slow", [], 1, " - not howto/slow.html first"),
        ("z", [], 1, " - something begins so"),
        ("zebra", [], 0, ""),
        ("xyz", [], 0, ""),
    ],
)
def test_a_question_whose_page_is_not_the_first_fails(question, pages, code, fault, monkeypatch, capsys):
    def browse(_, address, *__, virtual):
        """As a browser that shows these pages."""
        page = get(address)
        assert not virtual
        assert f'["{question}"]' in page
        assert "/assets/javascripts/workers/search.1.min.js" in page
        return f"<pre>{json.dumps({question: pages})}</pre>"

    monkeypatch.setattr(site_pictures, "browse", browse)
    assert site_search.main([question]) == code
    assert capsys.readouterr().out == f"{question} -> {', '.join(pages) or 'nothing'}{fault}\n"


@pytest.mark.usefixtures("site")
def test_a_search_that_does_not_answer_is_told_before_the_browser_is_ended(monkeypatch):
    waits, asked = [], []

    class Event(threading.Event):
        def wait(self, timeout=None):
            waits.append((timeout, self.is_set()))
            return self.is_set()

    monkeypatch.setattr(site_search, "threading", types.SimpleNamespace(Event=Event))

    def browse(_, address, *__, virtual):
        """As a browser, which prints the page when it has the picture."""
        assert not virtual
        host = address.removesuffix("/ask")
        get(f"{host}/hold")
        if asked:
            get(f"{host}/release")
            get(f"{host}/hold")
        asked.append(address)
        return "<pre></pre>"

    monkeypatch.setattr(site_pictures, "browse", browse)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"The search has not answered:\n<pre></pre>"):
            site_search.found("chromium", ["why slow"])
    assert [was_set for _, was_set in waits] == [False, False, True]
    assert all(limit < site_pictures.LIMIT for limit, _ in waits)


def test_numbers_of_tables_are_not_searched():
    html = '<td>12.5</td><td style="text-align: right;">3 x 4</td><td>~1,024 %</td><td>4 KiB</td><td>ring</td>'
    assert site_hooks.on_page_content(html) == (
        '<td data-search-exclude>12.5</td><td style="text-align: right;">3 x 4</td>'
        "<td data-search-exclude>~1,024 %</td><td>4 KiB</td><td>ring</td>"
    )
