"""The suite of the CPU engine and its page: small rows, and what the page says of them. No test looks at a time."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from benchmarks import cpu, page, programs, rows
from jaxring.bench import work
from jaxring.bench.run import Result


def result(peer, times, nbytes):
    return Result(peer, work.Case("all_reduce", "sum", "float32", nbytes), 1, 4, 4, times, 0, "")


def page_of(row, module, tmp_path, monkeypatch, notes=""):
    """Measures a row, a few iterations of each case, and returns the text of its page, and the folder of its files."""
    monkeypatch.setattr(rows, "ITERATIONS", 2)
    monkeypatch.setattr(page, "ROWS", (row,))
    saved, written = tmp_path / "measured", tmp_path / "page.md"
    assert rows.main(module, "", (row,), ["--out", str(saved)]) == 0
    if notes:
        (saved / "notes.md").write_text(notes)
    assert page.main([str(saved), str(written)]) == 0
    return written.read_text(), saved


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_suite_and_its_page(tmp_path, monkeypatch):
    row = rows.Row("tiny", "A tiny row", 1, 2, ("all_reduce", "permute"), ("4", "64", "1K"), ("xla", "gloo"))
    text, saved = page_of(row, "benchmarks.cpu", tmp_path, monkeypatch, "What a person says of it.")
    for wanted in ("## A tiny row", "](measured/tiny-permute.png)", "XLA in one process", "What a person says of it."):
        assert wanted in text, text
    assert text.count("| 1 KiB |") == 2
    assert (saved / "tiny-permute.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_page_of_whole_programs(tmp_path, monkeypatch):
    row = dataclasses.replace(programs.ROWS[0], name="tiny", devices=2, collectives=("sum", "roll"), sizes=("4", "4K"))
    text, saved = page_of(row, "benchmarks.programs", tmp_path, monkeypatch)
    wanted = "# Benchmarks of whole programs", "](measured/tiny.png)", "* `roll`: ", "| collectives |", "1 jaxring's |"
    for each in wanted:
        assert each in text, text
    assert (saved / "tiny.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.netns
@pytest.mark.slow
def test_a_row_between_hosts_says_what_joins_them(tmp_path, monkeypatch):
    network = rows.Network(2, "200mbit", links=2)
    row = rows.Row("apart", "Apart", 2, 1, ("all_reduce",), ("4", "64K"), ("gloo",), network=network)
    text, _ = page_of(row, "benchmarks.cpu", tmp_path, monkeypatch)
    assert "2 hosts, 2 link(s) of 200mbit each" in text, text
    assert "| bus Gbit/s |" in text, text
    assert "/tcp |" in text, text


def test_a_loss_is_listed():
    row = rows.Row("tiny", "A tiny row", 1, 4, ("all_reduce",), ("4", "64"), ("xla",))
    won = [result("jaxring", [10.0], 4), result("xla", [20.0], 4)]
    lost = [result("jaxring", [10.0], 64), result("xla", [5.0], 64)]
    assert list(page.losses(row, won + lost)) == [
        "* A tiny row, all_reduce of 64 B: XLA in one process (jax.lax) takes 0.50 of our time."
    ]


def test_a_setting_of_ours_that_is_faster_is_no_loss():
    row = rows.Row("tiny", "A tiny row", 1, 4, ("all_reduce",), ("4",), ("jaxring:JAXRING_ALGO=direct",))
    found = [result("jaxring", [10.0], 4), result(row.peers[0], [5.0], 4)]
    assert list(page.losses(row, found)) == []


def test_each_case_is_held_against_the_aim_of_its_size():
    row = rows.Row("tiny", "A tiny row", 2, 2, ("all_reduce",), ("64K", "512K", "1M"), ("gloo",))
    found = [result("gloo", [40.0], nbytes) for nbytes in (1 << 16, 1 << 19, 1 << 20)]
    found += [result("jaxring", [10.0], each.case.nbytes) for each in found]
    assert list(page.ratios_to_gloo(row, found)) == [
        ("| A tiny row, `all_reduce` | 64 KiB | 4.00 | 5 |", 4.0, 5.0),
        ("| A tiny row, `all_reduce` | 1 MiB | 4.00 | 3 |", 4.0, 3.0),
    ]


def test_one_that_is_ended_takes_its_hosts_with_it(tmp_path, monkeypatch):
    """SIGTERM comes as KeyboardInterrupt, so that a row's network namespaces are removed."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}

    def suite(*_):
        with pytest.raises(KeyboardInterrupt):
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        return 0

    monkeypatch.setattr(rows, "suite", suite)
    try:
        assert rows.main("benchmarks.cpu", "", [], ["--out", str(tmp_path)]) == 0
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_row_that_does_not_exist_is_named(tmp_path, capsys):
    assert rows.main("benchmarks.cpu", "", cpu.ROWS, ["--out", str(tmp_path), "--rows", "1x8,9x9"]) == 1
    assert "No such row: 9x9. Rows: 1x8, 1x2," in capsys.readouterr().err
