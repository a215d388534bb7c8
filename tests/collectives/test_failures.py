"""What fails while it runs: every local rank raises JaxRuntimeError in bounded time, and the next call works."""

from __future__ import annotations

import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxring
from jaxring.plan import protocols, tuner
from jaxring.plan.algorithms import serving
from tests.collectives.cases.coll_jobs import run_job
from tests.collectives.cases.coll_messages import ragged_case, ragged_expected

pytestmark = pytest.mark.usefixtures("nothing_left")


def call_ragged(t):
    return {
        "y": jaxring.ragged_all_to_all(
            t["operand"], t["output"], t["inputs"], t["sizes"], t["outputs"], t["comes"], axis_name="x", timeout=30
        )
    }


def broken_cases():
    """Ragged arguments that are wrong on one rank, and what the error says."""
    n = 4

    def case():
        return ragged_case(np.random.default_rng(0), n, 6)

    one = case()
    one["comes"][2, 1] += 1
    yield "sizes disagree", one
    two = case()
    two["sizes"][3, 0] = two["operand"].shape[1] + 1
    two["comes"][0, 3] = two["sizes"][3, 0]
    yield "past the operand", two
    three = case()
    three["outputs"][1, 2] = three["output"].shape[1]
    three["sizes"][1, 2] = three["comes"][2, 1] = 2
    yield "past the output", three
    four = case()
    four["sizes"][0, 1] = four["comes"][1, 0] = -1
    yield "negative size", four
    five = case()
    five["inputs"][0, 1] = -3
    five["sizes"][0, 1] = five["comes"][1, 0] = 1
    yield "negative offset", five


@pytest.mark.parametrize(("what", "tree"), list(broken_cases()), ids=lambda v: v if isinstance(v, str) else "-")
def test_ragged_sizes_that_disagree(ranks, what, tree):
    r = ranks(4)
    compiled = r.compile(call_ragged)
    good = ragged_case(np.random.default_rng(1), 4, 6)
    shapes = {name: value.shape for name, value in tree.items()}
    for name in ("operand", "output"):  # one program for both, so the same shapes
        fitted = np.zeros(shapes[name])
        rows = min(fitted.shape[1], good[name].shape[1])
        fitted[:, :rows] = good[name][:, :rows]
        good[name] = fitted
    good["sizes"] = np.minimum(good["sizes"], 1)
    good["comes"] = np.ascontiguousarray(good["sizes"].T)
    good["inputs"] = np.tile(np.arange(4, dtype=np.int32), (4, 1))
    good["outputs"] = np.ascontiguousarray(good["inputs"].T)
    for _ in range(2):
        began = time.monotonic()
        result = compiled(jax.tree.map(r.put, tree))
        with pytest.raises(jax.errors.JaxRuntimeError, match="ragged_all_to_all"):
            jax.block_until_ready(result)
        for shard in result["y"].addressable_shards:
            with pytest.raises(jax.errors.JaxRuntimeError):
                np.asarray(shard.data)
        assert time.monotonic() - began < 20
        expected = ragged_expected(good)
        for rank, value in r.values(compiled(jax.tree.map(r.put, good)))["y"].items():
            np.testing.assert_array_equal(value, expected[rank])


def test_a_protocol_that_cannot_carry_the_call(ranks):
    """What only the topology tells is an error of all ranks when it first runs, that says what would serve."""
    r = ranks(4)
    cases = []
    for collective in ("all_reduce", "broadcast"):
        for algorithm in serving(collective):
            for protocol in protocols.CPU:
                try:
                    tuner.choose(collective, (0,) * 4, (0,) * 4, 400000, "float32", algorithm, protocol)
                except ValueError as error:
                    cases.append((collective, algorithm, protocol, str(error)))
    assert len(cases) >= 10
    x = r.put(np.ones((4, 100000), np.float32))
    for collective, algorithm, protocol, text in cases:
        call = r.compile(
            lambda v, c=collective, a=algorithm, p=protocol: getattr(jaxring, c)(v, "x", algorithm=a, protocol=p)
        )
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(call(x))
        assert text in str(raised.value)
        assert "INVALID_ARGUMENT" in str(raised.value)
    np.testing.assert_array_equal(r.compile(lambda v: jaxring.all_reduce(v, "x"))(x), np.full((4, 100000), 4.0))


def test_a_message_that_nobody_sends(ranks):
    r = ranks(2)

    def program(v):
        got, token = jaxring.recv(jax.ShapeDtypeStruct((3,), jnp.float32), "x", [(0, 1)], tag=12345, timeout=1)
        return got + v + token

    began = time.monotonic()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)DEADLINE_EXCEEDED.*recv.*rank 0"):
        jax.block_until_ready(r.compile(program, check_vma=False)(r.put(np.zeros((2, 3), np.float32))))
    assert 0.9 < time.monotonic() - began < 15


def script(tmp_path, text):
    path = tmp_path / "failing.py"
    head = """
        import sys, time
        import jax, jax.numpy as jnp, numpy as np
        from tests.collectives.cases.coll_ranks import Ranks
        import jaxring
        me = jax.process_index()
        r = Ranks(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
        x = r.put(np.arange(r.n * 5, dtype=np.float32).reshape(r.n, 5))

        def expect_error(f):
            began = time.monotonic()
            try:
                result = f(x)
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                # XLA runs a small program of one local device on the calling thread, and jit's fast path makes its
                # error a ValueError.
                assert jax.local_device_count() == 1, repr(error)
                return [str(error)], time.monotonic() - began
            texts = []
            for shard in result.addressable_shards:
                try:
                    np.asarray(shard.data)
                except jax.errors.JaxRuntimeError as error:
                    texts.append(str(error))
                else:
                    sys.exit("no error on " + str(shard.device))
            return texts, time.monotonic() - began
    """
    path.write_text(textwrap.dedent(head) + textwrap.dedent(text), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("warm", [False, True])
def test_a_process_that_never_calls(tmp_path, devices, warm):
    """Within the timeout, every local rank raises, and the error names a rank that did not come."""
    path = script(
        tmp_path,
        f"""
        first = r.compile(lambda v: jaxring.all_reduce(v, "x"))
        second = r.compile(lambda v: jaxring.all_reduce(v * 2, "x", timeout=2)).lower(x).compile()
        jax.block_until_ready(first(x))  # nobody has to compile any more, so that all come at about the same time
        if {warm}:
            jax.block_until_ready(second(x))
        if me == 0:
            texts, took = expect_error(second)
            assert 1.5 < took < 20, took
            missing = range({devices}, {2 * devices})
            for text in texts:
                assert "DEADLINE_EXCEEDED" in text, text
                assert "all_reduce" in text and "failing.py" in text, text
                assert any(f"rank {{rank}}" in text for rank in missing), text
                assert "process 1" in text, text
            print("seen", len(texts), flush=True)
        else:
            time.sleep(8)
        """,
    )
    code, output = run_job(path, 2, devices, timeout_s=100)
    assert code == 0, output[-5000:]
    assert f"seen {devices}" in output


@pytest.mark.multiprocess
@pytest.mark.parametrize("how", ["exits", "raises"])
@pytest.mark.sampled(2)
def test_a_process_that_ends_sooner(tmp_path, how):
    """Every other one raises at once, by the name of the one that has ended and by what it said of its end."""
    path = script(
        tmp_path,
        f"""
        import pathlib
        here = pathlib.Path({str(tmp_path)!r})
        call = r.compile(lambda v: jaxring.all_reduce(v, "x"))
        for step in range(3):
            jax.block_until_ready(call(x))
        (here / f"begun {{me}}").touch()
        if me == 1:
            # The others have 5 s to end from then on, which on a busy machine they may need before they wait.
            while len(list(here.glob("begun *"))) < 3:
                time.sleep(0.02)
            if {how == "exits"}:
                sys.exit(3)
            raise ValueError("my own bug.")
        texts, _ = expect_error(call)
        for text in texts:
            assert "UNAVAILABLE" in text and "execution 3: " in text and "rank 1 (process 1 on " in text, text
            assert "Raise timeout" not in text and "without a word" not in text and ".." not in text, text
            assert "It was last seen between operations, " in text and ", execution 2. " in text, text
            if {how == "exits"}:
                assert "it has ended (exit code 3), so it ran fewer steps than this process. " in text, text
            else:
                assert "it is ending after an uncaught ValueError: my own bug. It was " in text, text
        print("told", flush=True)
        """,
    )
    code, output = run_job(path, 3, 1, timeout_s=100)
    assert output.count("told") == 2, output[-5000:]
    assert code == (3 if how == "exits" else 1), output[-5000:]


@pytest.mark.multiprocess
def test_a_long_wait_is_warned_of(tmp_path):
    """A process that waits says in what, for whom, and what that one does; which comes once that has been said."""
    said = tmp_path / "said"
    path = script(
        tmp_path,
        f"""
        import logging, pathlib
        said = pathlib.Path({str(said)!r})

        class Handler(logging.Handler):
            def emit(self, record):
                if "has waited" in record.getMessage() and record.levelno == logging.WARNING:
                    said.write_text(record.getMessage())

        call = r.compile(lambda v: jaxring.all_reduce(v, "x"))
        jax.block_until_ready(call(x))
        if me == 0:
            logging.getLogger("jaxring").addHandler(Handler())
        else:
            while not said.exists():  # the launcher's limit ends it
                time.sleep(0.1)
        jax.block_until_ready(call(x))
        print("done", flush=True)
        """,
    )
    code, output = run_job(path, 2, 1, timeout_s=100, JAXRING_STALL_WARNING="1", JAXRING_TIMEOUT="300")
    assert code == 0, output[-5000:]
    assert output.count("done") == 2
    text = said.read_text()
    assert text.startswith("process 0 has waited "), text
    for words in (
        " s in jaxring.all_reduce sum of float32[5] over 'x' at failing.py:",
        ", execution 1: rank 0 (process 0 on ",
        " waits for a message from rank 1 (process 1 on ",
        " is alive, and between operations, ",
        "It computes, waits in Python, or runs another program than this process.",
        "It fails 300 s after it began.",
    ):
        assert words in text, (words, text)


@pytest.mark.multiprocess
def test_processes_that_disagree(tmp_path):
    """Other programs in one of three processes: all are told before the first step, with both sides' lines."""
    path = script(
        tmp_path,
        """
        import inspect
        def reduced(v): return jnp.sum(jaxring.all_reduce(v, "x"))
        def gathered(v): return jnp.sum(jaxring.all_gather(v, "x"))
        def left(v): return gathered(v + reduced(v))
        def right(v): return reduced(v + gathered(v))
        def longer(v): return reduced(jnp.tile(v + reduced(3 * v), 2))
        def other(v): return jnp.sum(jaxring.all_to_all(jnp.tile(v, 3), "x", 0, 0, tiled=True))
        def line(f): return f"failing.py:{inspect.getsourcelines(f)[1]}"

        # What the others run and what process 1 runs; words of both sides.
        cases = {
            "order": (lambda v: left(2 * v), lambda v: right(2 * v), "collective 1", line(reduced), line(gathered),
                      "jaxring.all_reduce sum of float32[5]", "jaxring.all_gather of float32[5]"),
            "shape": (lambda v: reduced(v + reduced(3 * v)), longer, "collective 2",
                      "jaxring.all_reduce sum of float32[5]", "jaxring.all_reduce sum of float32[10]"),
            "program": (lambda v: reduced(4 * v), other, "collective 1", line(reduced), line(other)),
            "end": (lambda v: reduced(v + gathered(5 * v)), lambda v: gathered(5 * v), "collective 2",
                    line(reduced), "no more than 1"),
        }
        for name, (here, there, *words) in cases.items():
            texts, _ = expect_error(r.compile(there if me == 1 else here))
            for text in texts:
                wanted = ("different programs", "'jit_one'", "process 1", *words)
                assert all(word in text for word in wanted), (name, text, wanted)
                assert "INVALID_ARGUMENT" in text, text
        whole = np.arange(r.n * 5, dtype=np.float32).sum()
        assert np.asarray(r.compile(reduced)(x).addressable_shards[0].data) == whole
        print("all told", flush=True)
        """,
    )
    code, output = run_job(path, 3, 1, timeout_s=100)
    assert code == 0, output[-5000:]
    assert output.count("all told") == 3


@pytest.mark.multiprocess
def test_ragged_sizes_that_disagree_between_processes(tmp_path):
    path = script(
        tmp_path,
        """
        from tests.collectives.cases.coll_messages import ragged_case, ragged_expected
        from functools import partial
        case = ragged_case(np.random.default_rng(0), r.n, 5)
        bad = {name: value.copy() for name, value in case.items()}
        bad["comes"][0, 3] += 1

        def program(t):
            y = jaxring.ragged_all_to_all(t["operand"], t["output"], t["inputs"], t["sizes"], t["outputs"], t["comes"],
                                          axis_name="x", timeout=4)
            return {"y": y}

        compiled = r.compile(program)
        for _ in range(2):
            result = compiled(jax.tree.map(r.put, bad))["y"]
            failed = 0
            for shard in result.addressable_shards:
                try:
                    np.asarray(shard.data)
                except jax.errors.JaxRuntimeError as error:
                    failed += 1
            assert failed in (0, 2), failed  # all local ranks, or none
            if me == 0:
                assert failed == 2
        print("seen", flush=True)
        """,
    )
    code, output = run_job(path, 2, 2, timeout_s=100)
    assert code == 0, output[-5000:]
    assert output.count("seen") == 2
