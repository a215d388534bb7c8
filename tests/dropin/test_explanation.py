"""What `jaxring.explain()` returns: lines for programs, a table on terminals and in notebooks."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import re
import sys

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.dropin import explanation
from jaxring.runtime.explain import Decision

RUNS = 3
# Operations of an earlier test's call would count as this one's.
WIDTHS = itertools.count(3)


@pytest.fixture
def ran():
    """A call that has run so often, and what `explain` says of it."""
    mesh = jax.make_mesh((4,), ("<b>",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))
    call = jax.jit(jax.shard_map(lambda x: jaxring.all_reduce(x, "<b>"), mesh=mesh, in_specs=P("<b>"), out_specs=P()))
    jaxring.explain(clear=True)
    x = np.ones((4, next(WIDTHS)), np.float32)
    for _ in range(RUNS):
        jax.block_until_ready(call(x))
    return jaxring.explain()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))


def test_a_program_reads_lines(ran):
    line, waiting = ran.splitlines()
    assert re.match(r"all_reduce\(sum\) float32 \d+ B over '<b>' at test_explanation\.py:\d+: ", line)
    assert re.match(r"Threads that wait for messages on CPUs: poll for \d+ us.*, then sleep\.$", waiting)
    line = f"{line}\n{waiting}"
    assert (str(ran), f"{ran}", eval(repr(ran))) == (line, line, line)
    for copied in (pickle.loads(pickle.dumps(ran)), copy.deepcopy(ran)):
        assert type(copied) is str
        assert copied == line


def test_a_terminal_shows_a_table_with_times(ran, terminal):
    (plan,) = jaxring.plans()
    for shown in (str(ran), repr(ran), f"{ran}"):
        header, _, row, *_ = shown.splitlines()
        assert header.split() == ["call", "at", "taken", "planned", "runs", "median", "us"]
        planned, runs, median = row.split()[-3:]
        assert re.fullmatch(r"\d\d:\d\d:\d\d", planned)
        assert int(runs) == RUNS
        assert float(median.replace(",", "")) > 0
        assert max(map(len, shown.splitlines())) <= 80
        assert f" 1: 4 ranks in 1 process(es) over '<b>', 1 channel(s): {plan.why()}" in " " + " ".join(shown.split())
    assert ran.splitlines()[0] == str(plan)


def test_a_notebook_shows_a_table_in_which_names_are_no_markup(ran):
    shown = ran._repr_html_()
    assert shown.count("<tr>") == 2
    assert "over &#x27;&lt;b&gt;&#x27;" in shown
    assert "<b>" not in shown


def test_kinds_are_counted_and_notes_stand_below(terminal):
    made = [decision(site) for site in ("a.py:1", "b.py:2", "a.py:1")]
    found = explanation.of_decisions(made, {"psum at c.py:3: left to JAX": 2})
    assert found.splitlines() == [f"{made[0]} (x2)", str(made[1]), "psum at c.py:3: left to JAX (x2)"]
    shown = str(found).splitlines()
    assert sum(line.startswith("1  ") for line in shown) == sum(line.startswith("2  ") for line in shown) == 1
    assert shown[-1] == "psum at c.py:3: left to JAX (x2)"
    assert "(x2)" in "".join(shown[:-1])
    assert found._repr_html_().endswith("<p>psum at c.py:3: left to JAX (x2)</p>")


def test_nothing_is_said_in_words(terminal):
    nothing = explanation.of_decisions((), {})
    assert (
        str(nothing)
        == nothing[:]
        == "jaxring: no collective has been planned in this process yet, or since " + ("explain(clear=True).")
    )
    assert nothing._repr_html_() == f"<p>{nothing[:]}</p>"


def test_a_program_s_collectives_are_a_table(terminal):
    compiled = jax.jit(lambda x: x + 1).lower(np.float32(1)).compile()
    assert str(jaxring.explain(compiled)) == "jaxring: there is no collective in this program."
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))
    call = jax.shard_map(lambda x: jaxring.all_reduce(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    shown = str(jaxring.explain(jax.jit(call).lower(np.ones((4, 3), np.float32)).compile()))
    assert shown.splitlines()[0].split() == ["call", "at", "engine"]
    assert "1: called by the program; " in shown


def test_the_moment_is_not_in_what_processes_compare():
    early, late = decision("a.py:1", planned_at=1.0), decision("a.py:1", planned_at=2.0)
    assert early == late
    assert early.label() == late.label()
    assert "planned_at" not in json.loads(early.label())


def decision(site: str, **more: float) -> Decision:
    return Decision(
        *("all_reduce", "sum", "float32", 12, "'x'", site, 4, 1, "direct", "memory", 1, ("memory",), "asked for", ()),
        **more,
    )
