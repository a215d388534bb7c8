"""The site in a browser, as far as that needs none."""

from __future__ import annotations

import shutil
import urllib.request

from tools import site_pictures


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert site_pictures.main([]) == 2
    assert "apt install chromium" in capsys.readouterr().err
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(site_pictures, "ROOT", tmp_path)
    monkeypatch.setattr(site_pictures, "SITE", tmp_path / "build" / "site")
    assert site_pictures.main([]) == 2
    assert "There is no build/site: make docs" in capsys.readouterr().err


def test_all_pages_are_looked_at_and_one_that_is_too_wide_fails(tmp_path, monkeypatch, capsys):
    for name in ("index.html", "howto/slow.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}")
    monkeypatch.setattr(site_pictures, "SITE", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: name)

    def browse(_, address, *__):
        """As a browser in which one page is 600 pixels wide, and the other fits."""
        with urllib.request.urlopen(address) as answer:
            page = answer.read().decode()
        assert '["howto/slow.html", "index.html"]' in page
        return '<pre>{"howto/slow.html": 600, "index.html": 400}</pre>'

    monkeypatch.setattr(site_pictures, "browse", browse)
    assert site_pictures.main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "howto/slow.html needs 600 pixels, and the window has 400",
        "2 pages in a window of 400 pixels",
        "2 pages in a window of 1400 pixels",
    ]
