"""A setting is one row: a tree with one more parses it, shows it, documents it and has processes agree on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxring._native
from tests import ROOT

ROW = """    planet: str = row(
        "name", "earth", "Where the job runs.", kinds.one_of("earth", "mars"), shared=%s, engines="CPU"
    )
"""
WORLDS = """
import sys

from jaxring.errors import JoinError
from jaxring.settings import load
from jaxring.world import World
from tests.world.world_fakes import DirStore, FakeNative

theirs, ours = load({}), load({"JAXRING_PLANET": "Mars"})
assert (theirs.planet, ours.planet) == ("earth", "mars")
native = FakeNative(), FakeNative()
one = World(DirStore(sys.argv[1]), 0, 2, native[0], 20.0, settings=theirs)
other = World(DirStore(sys.argv[1]), 1, 2, native[1], 20.0, settings=ours)
try:
    print(other.info(0).index)
except JoinError as error:
    print(error)
for each in (one, other, *native):
    each.close()
"""


def run(tree: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAXRING_")}
    # The finder of an editable install, which would give the package that is under test everywhere else, is made by
    # site-packages: -S leaves it out, and the packages are found by the path.
    packages = os.pathsep.join((str(tree), *(entry for entry in sys.path if entry.endswith("site-packages"))))
    env = {**kept, "JAX_PLATFORMS": "cpu", "COLUMNS": "160", "PYTHONPATH": packages, **environment}
    return subprocess.run([sys.executable, "-S", *argv], cwd=tree, env=env, capture_output=True, text=True, timeout=200)


@pytest.fixture(params=[True, False], ids=["shared", "own"])
def shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def tree(tmp_path: Path, shared: bool) -> Path:
    """A copy of the package with one more row, in one file."""
    plain = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "jaxring", tmp_path / "jaxring", ignore=plain)
    shutil.copy(jaxring._native.__file__, tmp_path / "jaxring")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "settings.md", tmp_path / "docs")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "settings_page.py", tmp_path / "tools")
    shutil.copytree(ROOT / "tests" / "world", tmp_path / "tests" / "world", ignore=plain)
    rows = tmp_path / "jaxring" / "settings" / "rows" / "job.py"
    text = rows.read_text()
    first = "    hostid: str = row("
    assert first in text
    rows.write_text(text.replace(first, ROW % shared + first, 1))
    return tmp_path


@pytest.mark.sampled(2)
def test_one_row_adds_a_setting(tree: Path, shared: bool, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    joined = run(tree, "-c", WORLDS, str(store))
    assert joined.returncode == 0, joined.stderr
    if shared:
        assert "The settings differ" in joined.stdout
        assert "PLANET=earth" in joined.stdout
        assert "PLANET=mars" in joined.stdout
    else:
        assert joined.stdout == "0\n"

    wrong = run(tree, "-c", "import jaxring", JAXRING_PLANET="venus")
    assert "SettingsError: JAXRING_PLANET must be earth or mars, and it is 'venus'." in wrong.stderr

    doctor = run(tree, "-m", "jaxring.cli", "doctor", JAXRING_PLANET="mars")
    shown = [line.split() for line in doctor.stdout.splitlines()]
    assert ["JAXRING_PLANET", "mars", "JAXRING_PLANET"] in shown, doctor.stdout + doctor.stderr

    page = run(tree, "tools/settings_page.py")
    assert page.returncode == 0, page.stderr
    documented = (tree / "docs" / "settings.md").read_text()
    mark = "*" if shared else ""
    assert f"| PLANET{mark} | name | earth | CPU | Where the job runs. |\n" in documented
    assert (
        documented.replace(f"| PLANET{mark} | name | earth | CPU | Where the job runs. |\n", "")
        == (ROOT / "docs" / "settings.md").read_text()
    )
