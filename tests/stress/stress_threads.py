"""Cases in which several threads of a process launch programs, for `worker_cases.py`."""

from __future__ import annotations

import threading

import jax

import jaxring
from tests.stress.stress_ranks import AXIS, Mixture, check, over, put, rows, same, start

# jaxlib admits 32 launches to each device at a time. Threads whose launches it admits in different orders on different
# devices block each other where they have more, with lax.psum too: so each of four threads keeps 7.
AT_ONCE = 7


def waves(items: list) -> list[list]:
    """The items, as many at a time as a thread may have in flight."""
    return [items[i : i + AT_ONCE] for i in range(0, len(items), AT_ONCE)]


def in_threads(*targets) -> None:
    failures = []

    def guarded(target):
        try:
            target()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def threads_with_different_programs() -> None:
    mesh = start()

    def work(seed):
        mixture = Mixture(mesh, 12, seed)
        for wave in waves(list(range(42))):
            for result in [mixture.launch() for _ in wave]:
                mixture.check(result)

    in_threads(*(lambda seed=seed: work(seed) for seed in range(4)))


def threads_with_one_program() -> None:
    mesh = start()
    n = mesh.size
    program = over(mesh, lambda x: (jaxring.all_reduce(x, AXIS), jaxring.all_to_all(x, AXIS, 0, 0, tiled=True)))

    def work(seed):
        data = [rows(n, 16 * n, "int32", 1000 * seed + i) for i in range(60)]
        for wave in waves([(a, put(mesh, a)) for a in data]):
            for (a, _), (total, turned) in zip(wave, [program(x) for _, x in wave], strict=True):
                check(total, same(a.sum(0, dtype="int32"), n), seed)
                check(turned, a.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1), seed)

    in_threads(*(lambda seed=seed: work(seed) for seed in range(4)))


def threads_with_equal_programs() -> None:
    """Equal code, traced and compiled once by each thread: equal call sites of different programs."""
    mesh = start()
    n = mesh.size

    def work(seed):
        program = over(mesh, lambda x: jaxring.all_reduce(jaxring.all_reduce(x, AXIS), AXIS))
        data = [rows(n, 100, "int32", 1000 * seed + i) for i in range(60)]
        for wave in waves(data):
            for a, result in zip(wave, [program(put(mesh, a)) for a in wave], strict=True):
                check(result, same(n * a.sum(0, dtype="int32"), n), seed)

    in_threads(*(lambda seed=seed: work(seed) for seed in range(4)))


def programs_of_two_threads() -> None:
    """64 collectives in each of two programs, each launched by a thread of its own.

    With one device for each process, every second process starts its threads in the other order, and nothing orders
    their launches. With several devices, XLA's CPU client begins no launch before the one before it has ended, so that
    launches in different order could never meet: there the threads take turns, the same in all processes.
    """
    mesh = start()
    mixtures = [Mixture(mesh, 64, seed, largest=6000) for seed in range(2)]
    turn = threading.Condition()
    turns = [0, 1, 1, 0] * 6 if jax.local_device_count() > 1 else None

    def launch(number):
        if turns is None:
            return mixtures[number].launch()
        with turn:
            assert turn.wait_for(lambda: turns[0] == number, 60)
            result = mixtures[number].launch()
            turns.pop(0)
            turn.notify_all()
            return result

    def work(number):
        for _ in range(3):
            for result in [launch(number) for _ in range(4)]:
                mixtures[number].check(result)

    order = [0, 1]
    if jax.process_index() % 2 and turns is None:
        order.reverse()
    in_threads(*(lambda number=number: work(number) for number in order))
