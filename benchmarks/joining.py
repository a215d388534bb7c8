"""Time how a process that joins gets the state, against a plain TCP connection between the same two hosts.

    python -m benchmarks.joining --hosts 3 --rate 1gbit --bytes 1G

starts a process on each of so many network namespaces, whose links are shaped; it needs root and iproute2. In each turn
the bytes go by a socket from the first host to the last one; then the job is formed anew, and the last process has
nothing. What counts there is the time from its call of `jaxring.rebuild` until it has the whole state: the agreement,
new links, a new plan and the transfer, in which every message is checked (JAXRING_CHECKSUM=1). The others train
on meanwhile, and the command says how many steps they have made.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import namespaces, turns
from jaxring.bench.hosts import bytes_per_second
from jaxring.errors import JaxringError
from jaxring.settings.sizes import shown, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIRE, JOINING = "a TCP connection", "jaxring.rebuild and the state"
_PORT = 19310
# How long the two ends of the plain connection wait for each other, in seconds.
_CONNECT_S = 60.0
# For all but the transfers, s.
_LIMIT_S = 600.0
# A step sums so many float32.
_GRADIENTS = 1 << 16


def state_of(nbytes: int) -> np.ndarray:
    """What the first process has and the last one gets."""
    return np.random.default_rng(5).integers(0, 1 << 32, nbytes // 4, np.uint32)


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fills ``into``. ConnectionError where the sender ends before."""
    while into:
        came = connection.recv_into(into)
        if not came:
            raise ConnectionError(f"The first process has ended its connection {len(into)} bytes before the end.")
        into = into[came:]


def by_socket(state: np.ndarray, got: np.ndarray, address: str) -> float:
    """Seconds until the last process has the state of the first one in ``got``; 0 in the others."""
    me, last = jax.process_index(), jax.process_count() - 1
    if me == 0:
        with socket.create_server((address, _PORT)) as listener:
            listener.settimeout(_CONNECT_S)
            connection, _ = listener.accept()
            connection.settimeout(None)
            with connection:
                connection.sendall(state.data)
                connection.recv(1)  # the other side has all
    if me != last:
        return 0.0
    deadline = time.monotonic() + _CONNECT_S
    while True:
        begun = time.perf_counter()
        try:
            connection = socket.create_connection((address, _PORT))
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    with connection:
        receive(connection, got.data.cast("B"))
        took = time.perf_counter() - begun
        connection.sendall(b".")
    return took


def _over(devices: Sequence[Any], function: Callable[[Any], Any]) -> tuple[NamedSharding, Callable[..., Any]]:
    mesh = Mesh(np.array(devices), ("x",))
    spec = P("x")  # type: ignore[no-untyped-call]
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return NamedSharding(mesh, spec), jax.jit(mapped, donate_argnums=0)


class Joining:
    """What the processes run: the transfer in the first and the last one, steps in all but the last."""

    def __init__(self, state: np.ndarray) -> None:
        devices = sorted(jax.devices(), key=lambda d: d.process_index)
        self.me, self.last, self.state = jax.process_index(), len(devices) - 1, state
        self.sharding, self.hand_over = _over([devices[0], devices[-1]], lambda x: jaxring.broadcast(x, "x", root=0))
        self.by_step, self.step = _over(devices[:-1], lambda x: jaxring.all_reduce(x, "x"))

    def turn(self) -> tuple[float, int, np.ndarray]:
        """Seconds, the steps of the others meanwhile, and the state that has come to the last process."""
        operand = jax.device_put(self.state if self.me == 0 else np.zeros_like(self.state), jax.local_devices()[0])
        jax.block_until_ready(operand)  # type: ignore[no-untyped-call]
        begun = time.perf_counter()
        jaxring.rebuild()
        steps, handed = 0, self.state[:0]
        # A program may run on the thread that launches it, which has to go on with the steps.
        with concurrent.futures.ThreadPoolExecutor(1) as beside:
            handing = beside.submit(self._hand_over, operand) if self.me in (0, self.last) else None
            del operand
            if self.me != self.last:
                steps = self._train(handing)
            if handing is not None:
                handed = handing.result()
        return time.perf_counter() - begun, steps, handed

    def _hand_over(self, operand: jax.Array) -> np.ndarray:
        shape = (2 * self.state.size,)
        whole = jax.make_array_from_single_device_arrays(shape, self.sharding, [operand])
        return np.asarray(self.hand_over(whole).addressable_shards[0].data)

    def _train(self, handing: concurrent.futures.Future[np.ndarray] | None) -> int:
        """Steps until the first process has handed the state over, which it says to the others by what it adds."""
        steps = 0
        while True:
            over = handing is not None and handing.done()
            mine = jax.device_put(np.full(_GRADIENTS, -1000.0 if over else 1.0, np.float32), jax.local_devices()[0])
            shape = (self.last * _GRADIENTS,)
            summed = self.step(jax.make_array_from_single_device_arrays(shape, self.by_step, [mine]))
            if float(np.asarray(summed.addressable_shards[0].data)[0]) < 0:
                return steps
            steps += 1


def measure(nbytes: int, iterations: int, address: str) -> int:
    """Prints the times, in the last process. 1 where what came is not the state."""
    state = state_of(nbytes)
    joining = Joining(state)
    joining.turn()  # compiles
    times: turns.Times = {WIRE: [], JOINING: []}
    everywhere = jaxring.Communicator()
    for _ in range(iterations):
        got = np.empty_like(state) if joining.me == joining.last else state[:0]
        everywhere.all_reduce(np.zeros(1, np.float32))
        times[WIRE].append(by_socket(state, got, address))
        seconds, steps, handed = joining.turn()
        everywhere = jaxring.Communicator()
        times[JOINING].append(seconds)
        (made,) = everywhere.all_reduce(np.array([steps if joining.me == 0 else 0]))
        if joining.me == joining.last:
            if not (np.array_equal(got, state) and np.array_equal(handed, state)):
                print("FAILED: what came is not the state", flush=True)
                return 1
            print(
                f"{WIRE}: {times[WIRE][-1]:.2f} s; {JOINING}: {seconds:.2f} s, {made} steps of the others", flush=True
            )
    if joining.me == joining.last:
        middle = turns.medians(times)
        turns.report(times, f"\n{shown(nbytes)} of state", f"{JOINING} / {WIRE}: {middle[JOINING] / middle[WIRE]:.3f}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let the last process report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joining", description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=size, default=size("1G"), help="of the state (default: 1G)")
    parser.add_argument("--iters", type=int, default=5, help="turns that count (default: 5)")
    namespaces.add_arguments(parser, rate="1gbit", hosts=3)
    arguments = parser.parse_args(argv)
    if arguments.hosts < 2:
        parser.error("--hosts: two at least, the first has the state and the last one gets it")
    try:
        transfer_s = arguments.bytes / bytes_per_second(arguments.rate)
    except JaxringError as error:
        parser.error(f"--rate: {error}")
    os.environ.setdefault("JAXRING_CHECKSUM", "1")
    # Both ways in each turn, and one before: three times as long on a busy machine.
    limit_s = _LIMIT_S + 3 * (2 * arguments.iters + 1) * transfer_s
    status = namespaces.run_or_join("benchmarks.joining", arguments, argv, limit_s)
    if status is not None:
        return status
    return measure(arguments.bytes, arguments.iters, os.environ["JAX_COORDINATOR_ADDRESS"].partition(":")[0])


if __name__ == "__main__":
    sys.exit(main())
