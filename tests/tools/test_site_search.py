"""The search box of the site, as far as that needs no browser."""

from __future__ import annotations

import json
import shutil
import urllib.request

import pytest

from tests import ROOT
from tools import site_hooks, site_pictures, site_search


def test_each_question_has_a_page():
    pages = {page.removesuffix(".html") for page in site_search.QUESTIONS.values()}
    assert [page for page in pages if not (ROOT / "docs" / f"{page}.md").is_file()] == []


@pytest.mark.parametrize(("pages", "code"), [(["howto/slow.html", "faq.html"], 0), (["faq.html"], 1), ([], 1)])
def test_a_question_whose_page_is_not_the_first_fails(pages, code, tmp_path, monkeypatch, capsys):
    worker = tmp_path / "assets/javascripts/workers/search.1.min.js"
    worker.parent.mkdir(parents=True)
    worker.touch()
    (tmp_path / "index.html").touch()
    monkeypatch.setattr(site_pictures, "SITE", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: name)

    def browse(_, address, *__, virtual):
        """As a browser that shows these pages."""
        with urllib.request.urlopen(address) as answer:
            page = answer.read().decode()
        assert not virtual
        assert '["why slow"]' in page
        assert "/assets/javascripts/workers/search.1.min.js" in page
        return f"<pre>{json.dumps({'why slow': pages})}</pre>"

    monkeypatch.setattr(site_pictures, "browse", browse)
    assert site_search.main(["why slow"]) == code
    assert ("not howto/slow.html first" in capsys.readouterr().out) == bool(code)


def test_numbers_of_tables_are_not_searched():
    html = '<td>12.5</td><td style="text-align: right;">3 x 4</td><td>~1,024 %</td><td>4 KiB</td><td>ring</td>'
    assert site_hooks.on_page_content(html) == (
        '<td data-search-exclude>12.5</td><td style="text-align: right;">3 x 4</td>'
        "<td data-search-exclude>~1,024 %</td><td>4 KiB</td><td>ring</td>"
    )
