"""Optax transformations that reduce over ranks. `import jaxring` does not import this; it needs optax.

    import jaxring.optax

    optimizer = optax.chain(jaxring.optax.compressed_mean("data", "int8"), optax.adamw(3e-3))

docs/concepts/compression.md has the arithmetic of `compressed_mean`, docs/concepts/local-sgd.md that of `diloco`.
"""

from jaxring.optax.compressed import CompressedMeanState, compressed_mean
from jaxring.optax.local import DilocoState, diloco
from jaxring.optax.specs import state_specs

__all__ = ["CompressedMeanState", "DilocoState", "compressed_mean", "diloco", "state_specs"]
