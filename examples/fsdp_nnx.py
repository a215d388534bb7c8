"""Train a Flax NNX model whose parameters, gradients and Adam moments are sharded over all devices (FSDP).

The script has no collective and knows nothing of jaxring: arrays are sharded, and XLA's partitioner inserts what that
takes. It runs on jaxring by one line outside of it, with one process or several:

    JAXRING_INSTALL=whole JAX_NUM_CPU_DEVICES=8 python examples/fsdp_nnx.py
    jaxring run -n 2 --devices-per-process 2 --install whole examples/fsdp_nnx.py

The losses are compared with those of one device. It needs Flax and Optax.
"""

import argparse
from collections.abc import Iterator, Sequence

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

FEATURES, HIDDEN, CLASSES, ROWS = 16, 64, 8, 128


class Model(nnx.Module):
    """Each kernel is cut by its first dimension. Every device holds a part of it, and gathers what it computes with."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        kernel = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("data", None))
        self.inner = nnx.Linear(FEATURES, HIDDEN, kernel_init=kernel, rngs=rngs)
        self.norm = nnx.LayerNorm(HIDDEN, rngs=rngs)
        self.outer = nnx.Linear(HIDDEN, CLASSES, kernel_init=kernel, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.outer(self.norm(nnx.gelu(self.inner(x))))


@nnx.jit
def create() -> tuple[Model, nnx.Optimizer[Model]]:
    """A model and its optimizer, each device with its part only."""
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


@nnx.jit
def step(model: Model, optimizer: nnx.Optimizer[Model], x: jax.Array, y: jax.Array) -> jax.Array:
    """One step of training. Returns the loss before it."""

    def loss(model: Model) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def batches(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points, and which of CLASSES centres each is nearest to."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((CLASSES, FEATURES), np.float32)
    for _ in range(count):
        x = random.standard_normal((ROWS, FEATURES), np.float32)
        yield x, (x @ centres.T).argmax(1)


def train(steps: int, devices: Sequence[jax.Device] | None = None) -> list[float]:
    """The losses, from the same numbers in each process; on all devices unless told."""
    devices = jax.devices() if devices is None else devices
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
    rows = NamedSharding(mesh, P("data"))
    losses = []
    with jax.set_mesh(mesh):
        model, optimizer = create()
        for batch in batches(steps):
            x, y = (jax.make_array_from_callback(each.shape, rows, each.__getitem__) for each in batch)
            losses.append(float(step(model, optimizer, x, y)))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    losses = train(steps)
    np.testing.assert_allclose(losses, train(steps, jax.local_devices()[:1]), rtol=1e-4)
    if jax.process_index() == 0:
        print(*(f"{loss:.6f}" for loss in losses), sep="\n")
        print(f"losses of {jax.device_count()} devices are those of one device")


if __name__ == "__main__":
    main()
