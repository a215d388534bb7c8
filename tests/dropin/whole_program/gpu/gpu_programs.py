"""Programs over four devices, of plain `jax.jit` but for one, whose collectives XLA's partitioner inserts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxring

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 4
# `n` of what is compiled, and of what is run as well.
LARGE, SMALL = 512, 16
PROGRAMS = ("data_parallel", "fully_sharded", "tensor_parallel", "reshards", "experts", "apart", "called")
# Also run, and not compiled to the end.
PLAYED = (*PROGRAMS, "prefetch", "loop", "branches", "shuffled")


class Program(NamedTuple):
    """A function, and the shapes, dtypes and shardings of its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Programs:
    """On these devices; `n` scales their arrays."""

    def __init__(self, devices: list[Any], n: int) -> None:
        self.flat = Mesh(np.array(devices), ("x",))
        self.grid = Mesh(np.array(devices).reshape(2, 2), ("x", "y"))
        self.n = n

    def data_parallel(self) -> Program:
        """A step of three layers: gradients are summed, and the loss."""
        weights = [self._flat((self.n, self.n)) for _ in range(3)]
        return Program(self._step(lambda g: g), (weights, self._flat((2 * self.n, self.n), "x")))

    def fully_sharded(self) -> Program:
        """The same with sharded weights: they are gathered, and gradients scattered."""
        weights = [self._flat((self.n, self.n), "x", dtype=jnp.bfloat16) for _ in range(3)]
        step = self._step(lambda g: self._as(self.flat, g, "x"))
        return Program(step, (weights, self._flat((2 * self.n, self.n), "x", dtype=jnp.bfloat16)))

    def tensor_parallel(self) -> Program:
        """A transformer's block with heads and hidden units over the devices."""

        def block(x, wq, wk, wv, wo, w1, w2):
            q, k, v = (jnp.einsum("bte,ehd->bhtd", x, w) for w in (wq, wk, wv))
            scores = jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", q, k) / 4, axis=-1)
            x = x + jnp.einsum("bhts,bhsd,hde->bte", scores, v, wo)
            return x + jax.nn.gelu(x @ w1) @ w2

        n = self.n
        heads = [self._flat((n, 4, n // 4), None, "x") for _ in range(3)]
        out = self._flat((4, n // 4, n), "x")
        hidden = self._flat((n, 2 * n), None, "x"), self._flat((2 * n, n), "x")
        return Program(block, (self._flat((2, n // 4, n)), *heads, out, *hidden))

    def reshards(self) -> Program:
        """A chain of them on a mesh of two axes."""

        def chain(x):
            for spec in ((None, ("x", "y")), ("y", "x"), (None, "x"), (None, None), ("x", None), ("y", None)):
                x = self._as(self.grid, jnp.sin(x), *spec)
            return x

        return Program(chain, (self._shape(self.grid, (self.n, self.n), "x", "y"),))

    def experts(self) -> Program:
        """Tokens go to experts and back by all-to-all, while another branch that all tokens take is computed."""

        def layer(x, shared, experts):
            routed = self._as(self.flat, x, None, "x")
            routed = jnp.einsum("bed,edk->bek", routed, experts)
            return self._as(self.flat, routed, "x") + jnp.tanh(jnp.tanh(x @ shared) @ shared)

        n = self.n
        return Program(layer, (self._flat((n, 4, n), "x"), self._flat((n, n)), self._flat((4, n, n), "x")))

    def apart(self) -> Program:
        """Sums that are not joined: of another dtype, another reduction."""

        def sums(x, y, z):
            return jnp.sin(x).sum(0), jnp.abs(y).sum(0), jnp.cos(z).max(0)

        n = self.n
        return Program(
            sums, (self._flat((n, n), "x"), self._flat((n, n), "x", dtype=jnp.int32), self._flat((n, n), "x"))
        )

    def called(self) -> Program:
        """Two calls of the program's own that do not need each other."""

        def both(x, y):
            return jaxring.all_reduce(x, "x"), jaxring.all_reduce(jnp.abs(y), "x", "max")

        whole = PartitionSpec()
        inside = jax.shard_map(
            both, mesh=self.flat, in_specs=PartitionSpec("x"), out_specs=(whole, whole), check_vma=False
        )
        return Program(inside, (self._flat((self.n, 8), "x"), self._flat((self.n, 4), "x")))

    def prefetch(self) -> Program:
        """The weights of two layers are gathered while another one is computed."""

        def layers(x, here, first, second):
            y = jnp.tanh(x @ here)
            return jnp.tanh(y @ self._as(self.flat, first)) @ self._as(self.flat, second)

        n = self.n
        return Program(
            layers, (self._flat((n, n), "x"), self._flat((n, n)), self._flat((n, n), "x"), self._flat((n, n), "x"))
        )

    def loop(self) -> Program:
        """A step of layers that a loop goes over, with sharded weights."""

        def loss(weights, x):
            def layer(x, w):
                return jnp.tanh(x @ self._as(self.flat, w)), (x * x).sum(0)

            x, sums = jax.lax.scan(layer, x, weights)
            return (x * x).mean() + sums.mean()

        def step(weights, x):
            gradients = jax.grad(loss)(weights, x)
            return weights - 0.1 * self._as(self.flat, gradients, None, "x")

        n = self.n
        return Program(step, (self._flat((3, n, n), None, "x"), self._flat((n, n), "x")))

    def branches(self) -> Program:
        """Collectives in both branches of a conditional, in its condition and beside it."""

        def f(x):
            few = x[: self.n // 2]
            chosen = jax.lax.cond(x.sum() > 0, lambda y: y.sum(0), lambda y: jnp.roll(y, 3, 0).max(0), x)
            return chosen + few.sum(0), self._as(self.flat, x, None, "x")

        return Program(f, (self._flat((self.n, self.n), "x"),))

    def shuffled(self) -> Program:
        """Devices in another order, products over one axis and both."""
        mesh = Mesh(self.grid.devices.reshape(-1)[[2, 0, 3, 1]].reshape(2, 2), ("x", "y"))

        def f(x, w):
            y = self._as(mesh, x @ w, "y", "x")
            return jnp.sort(y, axis=0), jnp.cumsum(self._as(mesh, y, ("x", "y")), axis=1), jnp.einsum("ij,ij->", y, y)

        n = self.n
        return Program(f, (self._shape(mesh, (n, n), "x", "y"), self._shape(mesh, (n, n), "y", None)))

    def _step(self, kept: Callable[[Any], Any]) -> Callable[..., Any]:
        def loss(weights, x):
            for w in weights:
                x = jnp.tanh(x @ self._as(self.flat, w))
            return jnp.mean(x.astype(jnp.float32) ** 2)

        def step(weights, x):
            value, gradients = jax.value_and_grad(loss)(weights, x)
            return [w - (0.1 * kept(g)).astype(w.dtype) for w, g in zip(weights, gradients, strict=True)], value

        return step

    def _flat(self, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> Any:
        return self._shape(self.flat, shape, *spec, dtype=dtype)

    def _shape(self, mesh: Mesh, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    def _as(self, mesh: Mesh, x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))
