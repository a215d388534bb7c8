"""Runs a function on every rank of a mesh, in one process or several, and collects what each rank got."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Ranks:
    """A mesh in which rank i is the i-th device. Arrays hold all ranks' values, on the leading axis."""

    def __init__(self, devices: Sequence[Any], axes: Sequence[tuple[str, int]] = ()) -> None:
        axes = axes or [("x", len(devices))]
        self.names = tuple(name for name, _ in axes)
        self.mesh = Mesh(np.array(devices).reshape([size for _, size in axes]), self.names)
        self.n = len(devices)
        self._rank = {device: rank for rank, device in enumerate(devices)}
        me = jax.process_index()
        self.local = [rank for rank, device in enumerate(devices) if device.process_index == me]

    def put(self, x: np.ndarray) -> jax.Array:
        """An array whose i-th entry is on rank i."""
        return jax.make_array_from_callback(x.shape, NamedSharding(self.mesh, P(self.names)), lambda at: x[at])

    def compile(self, f: Callable[[Any], Any], **options: Any) -> Callable[[Any], Any]:
        """``f`` from a rank's tree of values to a tree, as a jitted function of trees with all ranks' values."""
        spec = P(self.names)
        options = {"mesh": self.mesh, "in_specs": spec, "out_specs": spec} | options

        def one(tree: Any) -> Any:
            return jax.tree.map(lambda a: a[None], f(jax.tree.map(lambda a: a[0], tree)))

        return jax.jit(jax.shard_map(one, **options))

    def values(self, tree: Any) -> dict[str, dict[int, np.ndarray]]:
        """{name: {rank: value}} of this process's ranks, from a flat dict of arrays."""
        found: dict[str, dict[int, np.ndarray]] = {}
        for name, array in tree.items():
            found[name] = {
                self._rank[shard.device]: np.asarray(shard.data)[0]
                for shard in sorted(array.addressable_shards, key=lambda shard: self._rank[shard.device])
            }
        return found

    def run(self, f: Callable[[Any], Any], tree: Any, **options: Any) -> dict[str, dict[int, np.ndarray]]:
        """``values`` of ``f`` of a tree of NumPy arrays."""
        return self.values(self.compile(f, **options)(jax.tree.map(self.put, tree)))

    def run_twice(
        self, report: Report, f: Callable[[Any], Any], tree: Any, **options: Any
    ) -> dict[str, dict[int, np.ndarray]]:
        """``run``; notes what gives other bits the second time."""
        arguments = jax.tree.map(self.put, tree)
        compiled = self.compile(f, **options)
        first, second = (self.values(compiled(arguments)) for _ in range(2))
        for name, shards in first.items():
            for rank, value in shards.items():
                report.expect_bits(f"{name} rank {rank}, second run", second[name][rank], value)
        return first


class Report:
    """Failures, and a digest of each result, by which processes and layouts are compared."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.digests: dict[str, dict[str, str]] = {}
        self.numbers: dict[str, dict[str, str]] = {}  # the same with one NaN for all, to compare processors
        self.checks = 0

    def fail(self, text: str) -> None:
        """Notes a failure."""
        self.failures.append(text)

    def check(self, name: str, problem: str) -> None:
        """Notes a problem, unless it is empty."""
        self.checks += 1
        if problem:
            self.failures.append(f"{name}: {problem}")

    def expect_bits(self, name: str, value: np.ndarray, expected: np.ndarray) -> None:
        """Notes a value that is not the expected one, byte for byte."""
        self.checks += 1
        if value.dtype != expected.dtype or value.shape != expected.shape:
            self.fail(f"{name}: got {value.dtype}{value.shape}, expected {expected.dtype}{expected.shape}")
        elif value.tobytes() != expected.tobytes():
            differ = np.flatnonzero(
                np.frombuffer(value.tobytes(), np.uint8) != np.frombuffer(expected.tobytes(), np.uint8)
            )
            at = int(differ[0]) // value.dtype.itemsize
            got, want = value.reshape(-1)[at], expected.reshape(-1)[at]
            self.fail(
                f"{name}: {differ.size} of {value.nbytes} bytes differ, first in entry {at}: {got!r} for {want!r}"
            )

    def same_everywhere(self, name: str, shards: dict[int, np.ndarray]) -> None:
        """Notes ranks of this process that got different bits; the digests tell other processes."""
        self.checks += 1
        for rank, value in shards.items():
            self.digest(name, rank, value)
        found = self.digests[name]
        if len(set(found.values())) > 1:
            self.fail(f"{name}: ranks got different bits: {found}")

    def digest(self, name: str, rank: int, value: np.ndarray) -> None:
        """Remembers what a rank got."""
        self.digests.setdefault(name, {})[str(rank)] = hashlib.sha1(value.tobytes()).hexdigest()
        parts = value.ravel().view(value.real.dtype).copy()
        with np.errstate(invalid="ignore"):  # which a signalling NaN is to the comparison
            odd = parts != parts
        if odd.any():
            parts[odd] = np.array(np.nan).astype(parts.dtype)
        self.numbers.setdefault(name, {})[str(rank)] = hashlib.sha1(parts.tobytes()).hexdigest()
