"""What `jaxring bench` makes of its results: rows, plots, comparisons."""

from __future__ import annotations

import csv
import dataclasses

import pytest
from matplotlib import pyplot as plt

from jaxring.bench import report, table, work
from jaxring.bench.programs import Program
from jaxring.bench.run import Result


def result(peer, times, nbytes=4, collective="all_reduce", layout=(1, 4), **case):
    made = work.Case(collective, "sum", "float32", nbytes, **case)
    return Result(peer, made, *layout, layout[0] * layout[1], times, 0, "direct/memory/local+shm")


def test_a_comparison_is_of_ratios():
    old = [result("jaxring", [10.0]), result("xla", [20.0])]
    new = [result("jaxring", [5.0]), result("xla", [15.0])]
    lines = report.compare(old, new)
    assert lines[1].split() == ["case", "peer", "then", "now", "change"]
    assert lines[2].endswith(", 4 B  xla   2.00  3.00    +50%")


def test_a_comparison_of_nothing_in_common_says_so():
    old = [result("jaxring", [10.0], 64), result("xla", [20.0], 64)]
    new = [result("jaxring", [5.0]), result("xla", [15.0])]
    (line,) = report.compare(old, new)
    assert "Nothing to compare" in line
    assert "begins with all_reduce sum float32, 1 process x 4 devices, 64 B to xla; this one with" in line
    assert "begins with none" in report.compare([], new)[0]


def test_an_operation_is_named_where_it_has_a_meaning():
    assert report.title(result("xla", [1.0])) == "all_reduce sum float32, 1 process x 4 devices"
    gathered = result("xla", [1.0], collective="all_gather", layout=(2, 1), chain=8)
    assert report.title(gathered) == "all_gather float32, 2 processes x 1 device, 8 in a chain"


def test_a_plot_has_a_row_for_each_collective_and_layout(tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "close", lambda figure: None)
    results = [
        result(peer, [float(nbytes + 1), nbytes + 3.0], nbytes, collective, layout)
        for collective in ("all_reduce", "all_gather")
        for layout in ((2, 1), (1, 4))
        for nbytes in (4096, 65536, 1 << 20)
        for peer in ("jaxring", "xla")
    ]
    report.plot(tmp_path / "out.png", results)
    axes = plt.gcf().axes
    monkeypatch.undo()
    plt.close("all")
    titles = [each.get_title(loc="left") for each in axes[::2]]
    assert titles == [
        f"{what} float32, {layout}"
        for what in ("all_reduce sum", "all_gather")
        for layout in ("2 processes x 1 device", "1 process x 4 devices")
    ]
    assert len(axes) == 8
    for each in axes:
        lines = [list(line.get_xdata()) for line in each.get_lines()]
        assert lines == [[4096, 65536, 1 << 20]] * 2
        assert [label.get_text() for label in each.get_xticklabels()] == ["4 KiB", "64 KiB", "1 MiB"]


def test_what_does_not_fit_is_left_out_by_worth_and_no_number_is_cut():
    mine = result("jaxring", [1234567.89, 1234999.5], 1 << 20)
    others = result("jaxring:JAXRING_ALGO=direct", [0.1], 1 << 20)
    cases, peers = [mine.case], [mine.peer, others.peer]
    every = [column.name for column in report.rows(cases, peers, 0).columns]
    by_worth = ["count", "light", "algbw GB/s", "quartiles", "choice", "busbw GB/s", "#wrong", "ratio"]
    whole = {"time us": "1234783.7", "busbw GB/s": "0.001", "ratio": "1.00", "#wrong": "0", "count": "262144"}
    seen = set()
    for width in range(30, 180):
        made = report.rows(cases, peers, width)
        kept = [column.name for column in made.columns]
        left_out = by_worth[: len(every) - len(kept)]
        assert kept == [name for name in every if name not in left_out]
        seen.add(len(left_out))
        row = report.row(made, [mine, others], mine, 10.0)
        assert [name for name in whole if name in kept] == [name for name in whole if whole[name] in row.split()]
        assert len(left_out) == len(by_worth) or max(len(made.header()), len(row)) <= width
    assert seen == set(range(len(by_worth) + 1))


def test_a_file_gets_all_columns():
    case = result("xla", [1.0])
    made = report.rows([case.case], ["jaxring", "xla"], 0)
    assert len(made.columns) == 11
    assert made.note({"size": "4 B", "peer": "xla"}, "no prod all_reduce").split() == [
        "4",
        "B",
        "xla",
        "no",
        "prod",
        "all_reduce",
    ]
    lines = table.rows([table.Column("a", 0, text=True), table.Column("b", 0)], [("word", "1.5"), ("w", "12.25")])
    assert lines == ["a         b", "word    1.5", "w     12.25"]


def test_quartiles_of_two_times_lie_between_them():
    assert result("jaxring", [1.0, 9.0]).spread == (3.0, 7.0)


def test_comma_separated_values_have_the_numbers_of_the_tables(tmp_path, capsys):
    mine, theirs = result("jaxring", [8.0], 4000), result("xla", [10.0, 30.0], 4000, inplace=False)
    refused = Result("mpi", mine.case, 1, 4, 4, [], 0, "", refused="no such type, in this MPI")
    program = Result("jaxring", Program("fft", 64), 2, 1, 2, [3.0], 0, "all of 4")
    again = [dataclasses.replace(each, times_us=[9 * time for time in each.times_us]) for each in (mine, theirs)]
    wider = [dataclasses.replace(each, processes=2) for each in again]
    tables = [[mine, theirs, refused, program], again, [*again[:1], *wider]]
    report.save_csv(tmp_path / "made" / "out.csv", tables, 10.0)
    with (tmp_path / "made" / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ratio"] for row in rows if row["peer"] == "xla"] == ["2.5"] * 3, "to ours of the same layout and turn"
    del rows[4:]
    assert [row["peer"] for row in rows] == ["jaxring", "xla", "mpi", "jaxring"]
    assert rows[0]["what"] == mine.case.what
    assert (rows[1]["processes"], rows[1]["devices"], rows[1]["bytes"], rows[1]["count"]) == ("1", "4", "4000", "1000")
    assert [float(rows[1][name]) for name in ("time us", "first quartile us", "third quartile us")] == [20, 15, 25]
    assert float(rows[1]["ratio"]) == 2.5
    for name, value in (("algbw GB/s", theirs.algbw), ("busbw GB/s", theirs.busbw), ("light", theirs.light(10.0))):
        assert float(rows[1][name]) == pytest.approx(value)
    assert (rows[2]["refused"], rows[2]["time us"], rows[2]["wrong"]) == ("no such type, in this MPI", "", "")
    assert (rows[3]["busbw GB/s"], rows[3]["count"], rows[3]["wrong"], rows[3]["choice"]) == ("", "", "0", "all of 4")
    report.save_csv(None, [[mine]], 10.0)
    assert capsys.readouterr().out.startswith("what,processes,devices,bytes,in place,chain,peer,time us,")
