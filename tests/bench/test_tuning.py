"""`jaxring tune`: what is measured, what is fitted to it, and what the choices are worth."""

from __future__ import annotations

import dataclasses
import json
import os
import re

import pytest

from jaxring.bench.tuning.calibrate import calibrated
from jaxring.bench.tuning.cell import COLLECTIVES, Layout, Own, cells
from jaxring.bench.tuning.fit import fitted
from jaxring.bench.tuning.measure import contenders
from jaxring.bench.tuning.near_best import judge
from jaxring.cli import main
from jaxring.plan.profile import Link
from jaxring.plan.profile_file import COMMODITY
from jaxring.plan.user import register_algorithm
from jaxring.topology import calibration
from jaxring.topology.cache import machine_kind
from jaxring.topology.order import Hop, Order
from jaxring.topology.search.measured import Found
from tests.cli.test_explain import OWN
from tests.plan.test_table_cost import exchange

SIZES = [64, 1 << 10, 16 << 10, 256 << 10, 4 << 20]
LAYOUTS = (Layout(1, 4), Layout(2, 1), Layout(4, 1), Layout(2, 2))
PROCESSORS = 2
STRANGE = dataclasses.replace(
    COMMODITY,
    memory=Link(7.0, COMMODITY.memory.overhead, 0.0004),
    shm=Link(9.0, 3.0, 0.0007),
    constants=dataclasses.replace(COMMODITY.constants, switch=11.0),
)


def predicted(profile, layouts=LAYOUTS, own=Own()):  # noqa: B008
    """Measurements of a machine on which every candidate takes what this profile says."""
    found = []
    for layout in layouts:
        times = {}
        for cell in cells(layout, SIZES, PROCESSORS, own):
            choice = layout.choose(cell.collective, cell.nbytes, PROCESSORS, profile, cell.own)
            us = dict(choice.candidates)
            times[cell] = [us["/".join(names)] for names in cell.candidates]
        found.append((layout, times, PROCESSORS))
    return found


def test_every_collective_and_size_has_its_candidates():
    found = cells(Layout(4, 1), SIZES, PROCESSORS)
    assert {cell.collective for cell in found} == set(COLLECTIVES)
    assert len(found) == len(COLLECTIVES) * len(SIZES)
    largest = max(cell.nbytes for cell in found if cell.collective == "all_gather")
    assert largest == SIZES[-1] // 4
    assert ("ring", "simple") in found[0].candidates


def test_prices_are_found_again_in_what_they_predict():
    found = fitted(COMMODITY, predicted(STRANGE))
    for record, field in (("memory", "beta"), ("shm", "alpha"), ("shm", "overhead"), ("shm", "beta")):
        assert getattr(getattr(found, record), field) == pytest.approx(getattr(getattr(STRANGE, record), field), 0.01)
    assert found.memory.alpha == pytest.approx(7.0, 0.01)
    assert found.constants.switch == pytest.approx(11.0, 0.01)
    # Nothing was measured between hosts.
    assert (found.tcp, found.rdma) == (COMMODITY.tcp, COMMODITY.rdma)
    assert fitted(COMMODITY, []) == COMMODITY


def test_a_calibrated_profile_chooses_what_was_fastest_and_keeps_other_layouts():
    measured = predicted(STRANGE)
    profile = calibrated(COMMODITY, measured)
    assert all(cell.ratio == 1 for cell in judge(profile, measured))
    assert any(cell.ratio > 1 for cell in judge(COMMODITY, measured))
    assert "2x2" in profile.source
    again = calibrated(profile, predicted(COMMODITY, LAYOUTS[1:2]))
    assert len(again.measured) == len(profile.measured)
    changed = {each for each in again.measured if each not in profile.measured}
    assert {(each.domains, each.width) for each in changed} == {(2, 1)}


def test_candidates_that_are_clearly_slower_are_measured_no_further():
    times = [[1.0, 1.1, 0.9, 1.0, 5.0], [1.0, 1.2, 1.3, 1.3, 1.4], [1.2, 1.3, 1.3, 1.3, 1.4], [2.0]]
    assert contenders(times, [0, 1, 2, 3]) == [0]
    times[1][2] = 1.05
    assert contenders(times, [0, 1, 3]) == [0, 1]


def test_an_algorithm_of_ones_own_is_measured_where_it_serves():
    register_algorithm("test_measured", "all_reduce", exchange)
    own = Own(("test_measured",))
    both, four = (cells(layout, SIZES, PROCESSORS, own) for layout in (Layout(2, 1), Layout(4, 1)))
    assert {cell.collective for cell in both if cell.own} == {"all_reduce"}
    assert all(("test_measured", "simple") in cell.candidates for cell in both if cell.collective == "all_reduce")
    assert [cell.candidates for cell in both if not cell.own] == [
        cell.candidates for cell in cells(Layout(2, 1), SIZES, PROCESSORS) if cell.collective != "all_reduce"
    ]
    assert not any(cell.own for cell in four)
    assert cells(Layout(4, 1), SIZES, PROCESSORS) == four
    # Its times count for the prices, and its price and times for the choices, which may take it.
    measured = predicted(STRANGE, LAYOUTS[1:2], own)
    assert fitted(COMMODITY, measured).shm.alpha == pytest.approx(9.0, 0.01)
    judged = list(judge(STRANGE, measured))
    assert all(cell.ratio == 1 for cell in judged)
    profile = calibrated(COMMODITY, measured)
    assert {each.protocol for each in profile.measured if each.algorithm == "test_measured"} == {"ll", "simple"}


def test_names_that_cannot_be_measured_are_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "refused_own.py").write_text(
        OWN.replace('"exchange"', '"test_of_two"').split('register_algorithm("wrong')[0]
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = ("--import", "refused_own", "--algorithm", "test_of_two")
    for name, options in (("tune", ()), ("bench", ("--tuner",))):
        assert main([name, *options, "-n", "4x1", *command]) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert f"jaxring {name}: test_of_two cannot be measured on 4x1: test_of_two all_reduce of 4 ranks" in said
        with pytest.raises(SystemExit):
            main([name, *options, "-n", "2x1", "--algorithm", "test_of_tow"])
        assert "did you mean test_of_two?" in capsys.readouterr().err
    assert main(["bench", "all_reduce", *command]) == 1
    assert "--import and --algorithm are of --tuner" in capsys.readouterr().err


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr("jaxring.bench.tuning.measure.TURNS", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration.current.cache_clear()
    yield tmp_path
    calibration.current.cache_clear()


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_the_command_measures_saves_and_forgets(cache, monkeypatch, capsys):
    (cache / "tuned_own.py").write_text(OWN.replace('"exchange"', '"test_tuned"').split('register_algorithm("wrong')[0])
    monkeypatch.chdir(cache)
    own = ["--import", "tuned_own", "--algorithm", "test_tuned"]
    assert main(["tune", "-n", "2x1", "-n", "1x2", "-b", "64", "-e", "4K", "-f", "64", "--plot", "tune.svg", *own]) == 0
    out = capsys.readouterr().out
    kind = machine_kind()
    path = calibration.file_of(kind)
    assert f"the profile of {kind} is in {path}" in out
    profile = calibration.read(path)
    assert {(each.domains, each.width) for each in profile.measured} == {(2, 1), (1, 2)}
    assert {each.collective for each in profile.measured} == set(COLLECTIVES)
    assert {each.domains for each in profile.measured if each.algorithm == "test_tuned"} == {1, 2}
    assert profile.shm != COMMODITY.shm
    # The words of a picture are comments beside their outlines.
    words = set(re.findall("<!-- (.*?) -->", (cache / "tune.svg").read_text()))
    assert words >= {f"{collective}, {layout}" for collective in COLLECTIVES for layout in ("2x1", "1x2")}
    assert words >= {f"{each.algorithm}/{each.protocol}" for each in profile.measured}
    calibration.current.cache_clear()
    assert main(["explain", "all_reduce", "-n", "2x1", "-b", "64"]) == 0
    assert "as measured on this kind of machine" in capsys.readouterr().out
    assert main(["tune", "--forget"]) == 0
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.usefixtures("cache", "nothing_left")
def test_the_check_of_the_choices_leaves_the_profile_alone(capsys):
    code = main(["bench", "--tuner", "-n", "2x1", "-n", "1x2", "-b", "64", "-e", "1K", "-f", "4"])
    out = capsys.readouterr().out
    near, cells = map(int, re.search(r"calibrated: within .* in (\d+) of (\d+) cells", out).groups())
    assert code == (near < 0.9 * cells)
    assert f"  2x1: {near} of {cells} cells" in out
    assert "on 2 of 3 sizes" in out
    assert "profile commodity: within 10% of the best candidate in" in out
    assert "profile calibrated: within 10% of the best candidate in" in out
    assert not calibration.file_of(machine_kind()).exists()


def test_hosts_that_cannot_share_the_processes_are_refused(capsys):
    assert main(["tune", "-n", "3x1", "--hosts", "2"]) == 1
    assert "2 hosts cannot share the processes" in capsys.readouterr().err
    assert main(["bench", "--tuner", "-n", "3x1", "--hosts", "2"]) == 1
    assert "2 hosts cannot share the processes" in capsys.readouterr().err


def test_a_profile_that_cannot_be_written_is_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("jaxring.bench.tuning.calibrate.measure_all", lambda *_: predicted(STRANGE, LAYOUTS[1:2]))
    out = tmp_path / "missing" / "profile.toml"
    assert main(["tune", "-n", "2x1", "--out", os.fspath(out)]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("cache")
def test_json_has_the_profile_and_where_it_is(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("jaxring.bench.tuning.calibrate.measure_all", lambda *_: predicted(STRANGE, LAYOUTS[1:2]))
    out = tmp_path / "profile.toml"
    assert main(["tune", "-n", "2x1", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["file"]) == (machine_kind(), str(out))
    written = dataclasses.asdict(calibration.read(out))
    assert found["profile"] == json.loads(json.dumps(written))
    assert main(["tune", "--forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kind": machine_kind(), "file": None}


def test_json_has_the_order_of_hosts(monkeypatch, capsys, tmp_path):
    order = Order((Hop("a", 21.0, 9400), Hop("b", 22.0, 9300)))
    monkeypatch.setattr("jaxring.bench.tuning.ranks.run", lambda: (order, Found((0, 1), 0.25, 0.5, 1, 1), True))
    out = tmp_path / "order.xml"
    assert main(["tune", "--ranks", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds") >= 0
    hops = [{"host": "a", "us": 21.0, "mbps": 9400}, {"host": "b", "us": 22.0, "mbps": 9300}]
    assert found.pop("hops") == hops
    assert found == {"file": str(out), "pairs": 1, "kept": True, "ring_s": 0.25, "in_order_of_ranks_s": 0.5}
