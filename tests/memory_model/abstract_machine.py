"""Runs small programs of several threads in every way that C++'s memory model allows, by release and acquire views.

It is the view-based machine of Kang, Hur, Lahav, Vafeiadis and Dreyer, "A promising semantics for relaxed-memory
concurrency" (POPL 2017), without promises: memory keeps every store; a thread may read any store that is not older than
what it has seen of that place; a release store carries what its thread has seen, and an acquire load takes it over. So
all weak behaviour is there, but that a store does not overtake an earlier load of its thread, nor one of another thread
to the same place. An operation of order seq_cst is not older than any before it, of all threads, on its place.

A thread is a generator that yields operations and receives their results. It must depend on nothing else, since it is
run again from its start for every way it can go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    Thread = Callable[[], Generator["Op", Any, None]]

RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = "relaxed", "acquire", "release", "acq_rel", "seq_cst"
_ACQUIRES, _RELEASES = {ACQUIRE, ACQ_REL, SEQ_CST}, {RELEASE, ACQ_REL, SEQ_CST}

# What a thread has seen: for each place the number of the newest store; and, by (place, thread), of the newest plain
# read of another thread, by which races with it are found.
View = tuple[tuple[Any, int], ...]


class Op(NamedTuple):
    """An operation. `until` makes a load wait for a value that it accepts; `change` makes it a read-modify-write."""

    kind: str  # load, store, change, fence, plain_read, plain_write, sleep, wake
    place: str = ""
    order: str = RELAXED
    value: Any = None
    until: Callable[[Any], bool] | None = None
    change: Callable[[Any], Any] | None = None


def load(place: str, order: str, until: Callable[[Any], bool] | None = None) -> Op:
    """An atomic load. With `until`, a loop of loads that ends with the first value accepted."""
    return Op("load", place, order, until=until)


def store(place: str, value: Any, order: str) -> Op:
    """An atomic store."""
    return Op("store", place, order, value)


def change(place: str, how: Callable[[Any], Any], order: str) -> Op:
    """An atomic read-modify-write; its result is the value before. It stores nothing where `how` returns None."""
    return Op("change", place, order, change=how)


def fence(order: str) -> Op:
    """A fence."""
    return Op("fence", order=order)


def read(place: str) -> Op:
    """A plain read: undefined unless the newest store of that place is known to this thread."""
    return Op("plain_read", place)


def write(place: str, value: Any) -> Op:
    """A plain write: undefined unless this thread knows of all stores and plain reads of that place."""
    return Op("plain_write", place, value=value)


def sleep(place: str, value: Any) -> Op:
    """FUTEX_WAIT: sleeps until a wake if it finds that value, as a load of order seq_cst does; else goes on at once."""
    return Op("sleep", place, value=value)


def wake(place: str) -> Op:
    """FUTEX_WAKE of all that sleep there."""
    return Op("wake", place)


class Message(NamedTuple):
    """A store: its value, and what a reader that acquires takes over."""

    value: Any
    view: View


class _Thread(NamedTuple):
    results: tuple[Any, ...] = ()  # of the operations so far, by which the generator is brought to its place
    view: View = ()
    acquired: View = ()  # of relaxed loads, for an acquire fence
    released: View = ()  # at the last release fence
    asleep: str = ""  # on this place


class _State(NamedTuple):
    threads: tuple[_Thread, ...]
    memory: tuple[tuple[str, tuple[Message, ...]], ...]
    in_order: View  # the newest store of order seq_cst of each place
    fenced: View  # of fences of order seq_cst


class Found(Exception):  # noqa: N818  # it is what the search looks for
    """A run that breaks the program: a race, a failed assertion, or threads that wait for ever."""


def explore(initial: Mapping[str, Any], *threads: Thread) -> int:
    """Runs threads in every way. Returns how many states there are. Raises `Found` with how the first bad run went."""
    memory = tuple((place, (Message(value, ()),)) for place, value in sorted(initial.items()))
    start = _State(tuple(_Thread() for _ in threads), memory, (), ())
    seen = {start}
    stack: list[tuple[_State, tuple[str, ...]]] = [(start, ())]
    while stack:
        state, way = stack.pop()
        running, moved = False, False
        for number, make in enumerate(threads):
            op = _next(make, state.threads[number].results, way)
            if op is None:
                continue
            running = True
            for after, said in _steps(state, number, op, way):
                moved = True
                if after not in seen:
                    seen.add(after)
                    stack.append((after, (*way, f"thread {number}: {said}")))
        if running and not moved:
            raise Found("threads wait for ever:\n" + "\n".join(way))
    return len(seen)


def _next(make: Thread, results: tuple[Any, ...], way: tuple[str, ...]) -> Op | None:
    thread = make()
    try:
        op = next(thread)
        for result in results:
            op = thread.send(result)
    except StopIteration:
        return None
    except AssertionError as error:
        raise Found(f"assertion failed: {error}\n" + "\n".join(way)) from error
    return op


def _join(a: View, b: View) -> View:
    if a == b or not b:
        return a
    both = dict(a)
    for place, number in b:
        both[place] = max(both.get(place, 0), number)
    return tuple(sorted(both.items(), key=repr))


def _with(view: View, place: Any, number: int) -> View:
    return _join(view, ((place, number),))


def _at(view: View, place: Any) -> int:
    return dict(view).get(place, 0)


def _steps(state: _State, number: int, op: Op, way: tuple[str, ...]) -> list[tuple[_State, str]]:
    """Every way in which a thread may execute its next operation."""
    thread = state.threads[number]
    memory = dict(state.memory)
    if thread.asleep:
        return []
    if op.kind == "fence":
        return [_fence(state, number, op)]
    messages = memory[op.place]
    newest = len(messages) - 1

    def after(new: _Thread, result: Any, **changes: Any) -> _State:
        threads = list(state.threads)
        threads[number] = new._replace(results=(*new.results, result))
        return state._replace(threads=tuple(threads), **changes)

    def stored(message: Message) -> tuple[tuple[str, tuple[Message, ...]], ...]:
        return tuple(sorted({**memory, op.place: (*messages, message)}.items()))

    if op.kind in {"plain_read", "plain_write"}:
        if _at(thread.view, op.place) != newest:
            raise Found(f"race: thread {number} has not seen the newest store to {op.place}\n" + "\n".join(way))
        if op.kind == "plain_read":
            mark = (op.place, number)
            view = _with(thread.view, mark, _at(thread.view, mark) + 1)
            return [(after(thread._replace(view=view), messages[newest].value), f"reads {op.place}")]
        for other, theirs in enumerate(state.threads):
            if _at(theirs.view, (op.place, other)) > _at(thread.view, (op.place, other)):
                raise Found(f"race: thread {number} writes {op.place}, which {other} reads\n" + "\n".join(way))
        view = _with(thread.view, op.place, newest + 1)
        new = after(thread._replace(view=view), None, memory=stored(Message(op.value, ())))
        return [(new, f"writes {op.place} = {op.value}")]
    if op.kind == "sleep":
        ways = []
        for at in range(max(_at(thread.view, op.place), _at(state.in_order, op.place)), newest + 1):
            if messages[at].value != op.value:
                ways.append((after(thread, None), f"does not sleep on {op.place}"))
                continue
            threads = list(state.threads)
            threads[number] = thread._replace(asleep=op.place)
            ways.append((state._replace(threads=tuple(threads)), f"sleeps on {op.place}"))
        return ways
    if op.kind == "wake":
        new = after(thread, None)
        woken = [t._replace(asleep="", results=(*t.results, None)) if t.asleep == op.place else t for t in new.threads]
        return [(new._replace(threads=tuple(woken)), f"wakes {op.place}")]
    if op.kind == "store":
        view = _with(thread.view, op.place, newest + 1)
        carried = view if op.order in _RELEASES else _with(thread.released, op.place, newest + 1)
        changes = {"memory": stored(Message(op.value, carried))}
        if op.order == SEQ_CST:
            changes["in_order"] = _with(state.in_order, op.place, newest + 1)
        return [(after(thread._replace(view=view), None, **changes), f"{op.place} = {op.value} ({op.order})")]
    found = []
    oldest = newest if op.kind == "change" else _at(thread.view, op.place)
    if op.order == SEQ_CST:
        oldest = max(oldest, _at(state.in_order, op.place))
    for at in range(oldest, newest + 1):
        message = messages[at]
        if op.until is not None and not op.until(message.value):
            continue
        view = _with(thread.view, op.place, at)
        acquired = _join(thread.acquired, message.view)
        if op.order in _ACQUIRES:
            view = _join(view, message.view)
        new = thread._replace(view=view, acquired=acquired)
        said = f"{op.place} is {message.value} ({op.order})"
        value = op.change(message.value) if op.change is not None else None
        if value is None:
            found.append((after(new, message.value), said))
            continue
        view = _with(view, op.place, newest + 1)
        carried = view if op.order in _RELEASES else _with(thread.released, op.place, newest + 1)
        # A read-modify-write goes on with the release sequence that it reads from.
        changes = {"memory": stored(Message(value, _join(carried, message.view)))}
        if op.order == SEQ_CST:
            changes["in_order"] = _with(state.in_order, op.place, newest + 1)
        found.append((after(new._replace(view=view), message.value, **changes), f"{said}, becomes {value}"))
    return found


def _fence(state: _State, number: int, op: Op) -> tuple[_State, str]:
    thread = state.threads[number]
    view, fenced = thread.view, state.fenced
    if op.order in _ACQUIRES:
        view = _join(view, thread.acquired)
    if op.order == SEQ_CST:
        view = _join(view, fenced)
        fenced = view
    released = view if op.order in _RELEASES else thread.released
    threads = list(state.threads)
    threads[number] = thread._replace(view=view, released=released, results=(*thread.results, None))
    return state._replace(threads=tuple(threads), fenced=fenced), f"fence ({op.order})"
