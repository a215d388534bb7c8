"""What the models learn, and how their parameters lie on a mesh of ("data", "model")."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

INPUTS, HIDDEN, CLASSES, BATCH, STEPS = 6, 32, 3, 64, 20
DATA = P("data")


def batches():
    """STEPS batches of points and the classes of the nearest of three centres."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, INPUTS), np.float32)
    for _ in range(STEPS):
        x = rng.standard_normal((BATCH, INPUTS), np.float32)
        yield x, np.argmin(((x[:, None] - centres) ** 2).sum(-1), axis=1)


def specs(tree, features_last):
    """The layer `up` is cut by its outputs, `down` by its inputs; so are the optimizer's moments, by their paths.

    ``features_last``: whether weights are (inputs, outputs), as in Flax, or (outputs, inputs), as in Equinox.
    """

    def one(path, leaf):
        name = jax.tree_util.keystr(path)
        if "up" in name:
            return P(None, "model") if leaf.ndim == 2 and features_last else P("model")
        if "down" in name and leaf.ndim == 2:
            return P("model") if features_last else P(None, "model")
        return P()

    return jax.tree_util.tree_map_with_path(one, tree)
