"""A schedule written in Python by a user runs, and a wrong one is refused when the call is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan import msccl
from jaxring.plan.foreign import reading
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, ScheduleError, Spec, Step
from tests.plan.foreign.plans import all_reduce_by_packets, reduce_scatter_by_scratch
from tests.plan.test_msccl import ring_all_reduce, sends_an_operand_on

IN, OUT = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0)


def chain(spec: Spec, rank: int, final: bool = True) -> list[list[Step]]:
    """Sums along 0, 1, ..., n-1 and sends the result back down: the simplest all-reduce there is."""
    n, me = spec.nranks, Peer(rank)
    below, above = Peer(rank - 1), Peer(rank + 1)
    done = Flag.FINAL if final else Flag.NONE
    if n == 1:
        return [[Step(Kind.REDUCE, IN, OUT, recv=(me,), flags=done)]]
    if rank == 0:
        return [[Step(Kind.MOVE, IN, send=(above,)), Step(Kind.MOVE, dst=OUT, recv=(above,))]]
    # Rank 0 sends its input as it is, the others partial results.
    partial = Flag.RECV_PARTIAL if rank > 1 else Flag.NONE
    if rank == n - 1:
        return [[Step(Kind.REDUCE, IN, OUT, recv=(below, me), send=(below,), flags=partial | done)]]
    up = Step(Kind.REDUCE, IN, recv=(below, me), send=(above,), flags=partial | Flag.SEND_PARTIAL)
    return [[up, Step(Kind.MOVE, dst=OUT, recv=(above,), send=(below,))]]


def forgetful(spec: Spec, rank: int) -> list[list[Step]]:
    return chain(spec, rank, final=False)


jaxring.register_algorithm("test_chain", "all_reduce", chain)
jaxring.register_algorithm("test_forgetful", "all_reduce", forgetful)


def run(algorithm: str, x: np.ndarray, ranks: int) -> np.ndarray:
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("r",))
    body = lambda v: jaxring.all_reduce(v, "r", algorithm=algorithm, timeout=60)  # noqa: E731
    y = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=P()))(x)
    return np.asarray(y)[0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_chain_sums(ranks: int, dtype: str) -> None:
    x = np.arange(ranks * 40000).reshape(ranks, 40000) % 7
    y = run("test_chain", x.astype(jnp.dtype(dtype)), ranks)
    assert y.astype(np.float64).tolist() == x.sum(0).tolist()
    planned = [d for d in jaxring.plans() if d.algorithm == "test_chain"]
    assert planned or ranks == 1
    # Its price is of its own table.
    assert all(name in ("test_chain/ll", "test_chain/simple") for d in planned for name, _ in d.candidates)
    assert all(d.candidates and d.prediction.startswith("predicted ") for d in planned)


def test_an_algorithm_in_xml_of_msccl_runs() -> None:
    name, text = ring_all_reduce(4, channels=2)
    msccl.register(text)
    x = np.arange(4 * 40000, dtype=np.float32).reshape(4, 40000) % 7
    assert run(name, x, 4).tolist() == x.sum(0).tolist()
    assert any(d.algorithm == name for d in jaxring.plans())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plans_of_others_run(dtype: str) -> None:
    """Also one that adds messages up before its turn, and one that keeps another rank's operand in scratch."""
    packets = all_reduce_by_packets(4, 3)
    for name, text, ranks in ((packets.name, packets.text(), 4), (*sends_an_operand_on(), 3)):
        reading.register(text)
        x = (np.arange(ranks * 40001).reshape(ranks, 40001) % 7).astype(jnp.dtype(dtype))
        y = run(name, x, ranks)
        assert y.astype(np.float64).tolist() == x.astype(np.float64).sum(0).tolist()
        assert any(d.algorithm == name for d in jaxring.plans())


def test_a_reduce_scatter_of_mscclpp_runs() -> None:
    plan = reduce_scatter_by_scratch(4)
    reading.register(plan.text())
    x = np.arange(4 * 4 * 1001, dtype=np.float32).reshape(16, 1001) % 7
    mesh = Mesh(np.array(jax.devices()[:4]), ("r",))
    body = lambda v: jaxring.reduce_scatter(v, "r", algorithm=plan.name, timeout=60)  # noqa: E731
    y = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=P("r")))(x)
    assert np.asarray(y).reshape(4, 1001).tolist() == x.reshape(4, 4, 1001).sum(0).tolist()


def test_wrong_schedule_is_refused_at_trace_time() -> None:
    with pytest.raises(ScheduleError, match="rank"):
        run("test_forgetful", np.ones((3, 4), np.float32), 3)


def no_lane(spec: Spec, rank: int) -> list[Step]:
    return chain(spec, rank)[0]


def no_step(spec: Spec, rank: int) -> list[list[str]]:
    return [["MOVE"]]


def no_peers(spec: Spec, rank: int) -> list[list[Step]]:
    return [[step._replace(send=step.send[0]) if step.send else step for step in lane] for lane in chain(spec, rank)]  # type: ignore[arg-type]


def nothing(spec: Spec, rank: int) -> None:
    return None


def in_error(spec: Spec, rank: int) -> list[list[Step]]:
    return [chain(spec, rank)[rank]]


def too_many(spec: Spec, rank: int) -> list[list[Step]]:
    return [*chain(spec, rank), []]


@pytest.mark.parametrize(
    ("lanes", "said"),
    [
        (no_lane, r"lanes\(spec, 0\) of algorithm 'test_no_lane': lane 0 must be a sequence of steps"),
        (no_step, r"algorithm 'test_no_step': step 0 of lane 0 must be a jaxring.plan.schedule.Step, not 'MOVE'"),
        (no_peers, r"test_no_peers': step 0 of lane 0 must have tuples of .*, such as \(peer,\), not Peer\(rank=1, "),
        (nothing, r"algorithm 'test_nothing' must return a sequence of lanes, .* not None"),
        (too_many, r"test_too_many all_reduce of 3 ranks: rank 0 has 2 lanes, but the schedule declares 1"),
    ],
)
def test_what_is_no_schedule_is_refused_by_the_algorithm_s_name(lanes: Any, said: str) -> None:
    name = f"test_{lanes.__name__}"
    jaxring.register_algorithm(name, "all_reduce", lanes)
    with pytest.raises(ScheduleError, match=said):
        run(name, np.ones((3, 4), np.float32), 3)


def test_an_error_of_the_user_s_function_stays_and_names_the_call() -> None:
    jaxring.register_algorithm("test_in_error", "all_reduce", in_error)
    jaxring.register_algorithm("test_no_number", "all_reduce", chain, pieces=lambda spec: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(IndexError) as caught:
        run("test_in_error", np.ones((3, 4), np.float32), 3)
    note = "jaxring: raised by lanes(spec, 1) of algorithm 'test_in_error', for all_reduce of 3 ranks"
    assert caught.value.__notes__[0] == note
    with pytest.raises(TypeError) as caught:
        run("test_no_number", np.ones((3, 4), np.float32), 3)
    assert "pieces() and nlanes() of algorithm 'test_no_number'" in caught.value.__notes__[0]


def test_it_serves_its_collective_only() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("r",))
    body = jax.shard_map(
        lambda v: jaxring.all_gather(v, "r", algorithm="test_chain"), mesh=mesh, in_specs=P("r"), out_specs=P("r")
    )
    with pytest.raises(ValueError, match="registered for all_reduce"):
        jax.eval_shape(body, jnp.ones((2, 2)))


@pytest.mark.parametrize(("name", "collective"), [("ring", "all_reduce"), ("test_new", "all_shuffle")])
def test_bad_registrations(name: str, collective: str) -> None:
    with pytest.raises(ValueError, match=name if name == "ring" else collective):
        jaxring.register_algorithm(name, collective, chain)
