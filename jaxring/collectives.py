"""The collectives that users call, with `jax.lax`'s names for arguments and its argument order; `rooted` has others.

All of them work inside `jax.shard_map` and `jax.pmap` over mesh axes, and `jax.vmap` with an ``axis_name``, on pytrees
leaf by leaf. ``axis_name`` is a name or a tuple of names; the rank is the row-major index over the tuple in the given
order. Extras are keyword-only:

* ``axis_index_groups``: collectives among subsets of an axis, as in `jax.lax`.
* ``algorithm``: "ring", "tree", "direct", "oneshot", "halving_doubling", "pat", "hier_ring", "hier_tree",
  "hier_direct", "deterministic"; on CPUs also "pxn" and "multileader" for all_to_all and "reproducible" for exact sums;
  among GPUs of one memory domain (experimental: it has run on one GPU only) also "copy_engine" for collectives that
  only move data, and "nvls" (the NVLink switch) for all_reduce, reduce_scatter and all_gather (experimental: it has not
  run on a GPU yet); or the name of one of your own. None lets the tuner choose. An algorithm that does not serve the
  call is an error.
* ``protocol``: "ll", "simple", "memory" or, for GPUs alone, "ll128"; None lets the tuner choose.
* ``timeout``: seconds until every rank raises `jax.errors.JaxRuntimeError`; None means JAXRING_TIMEOUT.
* ``compress``, of all_reduce, reduce_scatter, all_gather and all_to_all: "int8", "fp8_e4m3", "bf16" or "int4" sends
  float32, bfloat16 and float16 quantised in blocks of 128 elements; operations are "sum" and "mean". All ranks of an
  all_reduce or all_gather get the same bits; NaN and infinity stay where they are. ``seed``, an integer or a uint32
  scalar, rounds at random by a counter-based generator; None rounds to nearest. Values that would not become shorter
  are sent as they are. docs/concepts/compression.md has the error bounds.

* ``epilogue``, of all_reduce and reduce_scatter: a function of `jaxring.epilogues` that the reduction applies
  to its complete values before it spreads them. docs/concepts/epilogues.md has what it costs, and
  `jaxring.epilogues` its errors.

Those that only move data also take typed PRNG keys and integers of 4 bits, as `jax.lax` does.

All but barrier can be differentiated, any number of times. Under ``check_vma=True`` see `jaxring.pcast`.

Errors at trace time: NameError for an axis that is not bound, TypeError for an operation that is not defined for a
dtype and for an argument that is no array or no axis name, ValueError for arguments that do not fit each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from jaxring import _moves, _reductions
from jaxring._moves import *  # noqa: F403
from jaxring._reductions import *  # noqa: F403

# batching and differentiation are imported for the rules of jax.vmap and jax.grad that they register.
from jaxring.tracing import batching, checks, differentiation  # noqa: F401
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.calls import bind

if TYPE_CHECKING:
    import jax

    from jaxring.tracing.axes import AxisName

__all__ = [*_moves.__all__, *_reductions.__all__, "barrier"]


def barrier(axis_name: AxisName, *, timeout: float | None = None) -> jax.Array:
    """No rank passes before all have arrived.

    XLA orders by data alone: what has to wait must use the result.

    Args:
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        A uint32 scalar, 0.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        ValueError: At trace time: ``timeout`` is out of range.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        What is returned waits for all ranks:

            x = x + jaxring.barrier("data").astype(x.dtype)
    """
    axes = resolve("barrier", axis_name)
    options = checks.options("barrier", axes, "sum", None, None, timeout, call_site())
    token: jax.Array = bind("barrier", jnp.zeros((), jnp.uint32), axes, options)
    return token


for _name in __all__:
    # What help(), tracebacks and pickles show is the module that users import, not the part of it.
    globals()[_name].__module__ = __name__
