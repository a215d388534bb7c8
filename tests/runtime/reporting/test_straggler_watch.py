"""The warnings of the planning thread about processes that come late, by what other processes have told the engine."""

from __future__ import annotations

from types import SimpleNamespace as Some

from jaxring.runtime.reporting.straggler_watch import StragglerWatch

MS = 10**6


class Native:
    """Twenty executions of a call each second, to which process ``late`` comes 40 ms after the other one."""

    def __init__(self, own, late, label='{"collective":"all_reduce"}'):
        self._own, self._late, self._label = own, late, label
        self._key = 0

    def record(self, number):
        return Some(what="all_reduce x", label=self._label)

    def take_arrivals(self):
        self._key += 1
        launches = []
        for i in range(20):
            begin = (1000 * self._key + 50 * i) * MS
            times = [
                Some(key=self._key, sequence=i, launched_ns=begin + by, idle_ns=by + MS)
                for by in (40 * MS * (self._late == self._own), 40 * MS * (self._late != self._own))
            ]
            launches.append(Some(number=i, own=times[0], theirs=times[1]))
        peer = Some(process=1 - self._own, error_ns=0, offset_ns=0, shared_launches=launches, samples=[])
        return [Some(samples=[]), peer]


def test_the_other_process_is_warned_of_and_this_one_is_not():
    watch = StragglerWatch(Native(0, late=1), 0)
    (said,) = watch.look(100.0)
    assert said.startswith("process 1 comes late to all_reduce x, by 40 ms in 20 of the last 20 executions")
    assert watch.look(101.0) == watch.look(103.0) == []  # too early, and said already
    assert StragglerWatch(Native(1, late=1), 1).look(100.0) == []


def test_what_is_no_collective_of_all_or_has_no_label_is_not_looked_at():
    for label in ("", "[1", '{"collective":"broadcast"}', '{"collective":[]}'):
        assert StragglerWatch(Native(0, late=1, label=label), 0).look(100.0) == []
