"""The pictures of terminals in docs/screenshots: each is on a page, and shows what the command prints now."""

import html
import os
import pathlib
import re
import time

import pytest

from tests import ROOT
from tests.docs.test_docs import PAGES
from tools import screenshots


def text(svg: str) -> list[str]:
    """The characters that a picture shows, line by line; without what a simulation of 128 ranks took."""
    lines = [html.unescape(re.sub("<[^>]*>", "", line)).rstrip() for line in svg.splitlines() if "<text" in line]
    lines = [re.sub(r"^(│\s128\s.*│)[^│]*│$", r"\1", line) for line in lines]
    return [re.sub(r"(?<=^Simulated\sin\s)[\d.,]+(.*?)[\d.,]+", r"N\1N", line) for line in lines]


def test_each_is_on_a_page():
    assert {path.stem for path in screenshots.FOLDER.glob("*.svg")} == set(screenshots.SHOWN)
    pages = "".join(page.read_text() for page in PAGES)
    assert [name for name in screenshots.SHOWN if f"screenshots/{name}.svg" not in pages] == []


@pytest.mark.parametrize("name", sorted(set(screenshots.SHOWN) - {"quickstart", "top"}))  # times differ
def test_it_shows_what_the_command_prints(name, tmp_path):
    svg = screenshots.screenshot(screenshots.SHOWN[name], screenshots.environment(str(tmp_path)))
    assert text(svg) == text((ROOT / "docs" / "screenshots" / f"{name}.svg").read_text())


def test_a_command_that_fails_is_no_picture(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 2"):
        screenshots.screenshot("jaxring explain nothing", screenshots.environment(str(tmp_path)))


@pytest.mark.parametrize("command", ["sleep 1000", "sh -c 'sleep 1000 & wait'"])
def test_a_command_that_does_not_end_is_ended(command, tmp_path, monkeypatch):
    monkeypatch.setattr(screenshots, "_LIMIT", 0.1)
    with pytest.raises(RuntimeError, match="ended with -9"):
        screenshots.screenshot(command, screenshots.environment(str(tmp_path)))


def as_jaxring(folder: pathlib.Path, script: str) -> dict[str, str]:
    """The environment in which the command `jaxring` is this shell script. HOME is its folder."""
    command = folder / "jaxring"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}


def test_a_job_that_ends_by_itself_is_not_looked_at(tmp_path):
    environ = as_jaxring(tmp_path, "echo no such option >&2; exit 3")
    with pytest.raises(RuntimeError, match="ended with 3 at once:\nno such option"), screenshots.job(environ):
        raise AssertionError("looked at")


def test_a_job_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(screenshots, "_BEGIN", 0.01)
    monkeypatch.setattr(screenshots, "_END", 0.01)
    environ = as_jaxring(tmp_path, "cd; trap '' INT; echo $$ > part; mv part pid; exec sleep 600")
    with screenshots.job(environ):
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
