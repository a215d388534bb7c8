"""Messages between named ranks, and all-to-all of uneven parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxring.collectives import all_to_all
from jaxring.plan.algorithms import serving
from jaxring.tracing import checks, oracle
from jaxring.tracing.axes import call_site, resolve, shown
from jaxring.tracing.casting import cast_alike, cast_varying
from jaxring.tracing.p2p_primitives import ragged_p, recv_p, send_p
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.tracing.axes import Axes, AxisName
    from jaxring.tracing.options import Options


def new_token() -> jax.Array:
    """A token that begins a chain of `send` and `recv`.

    Returns:
        A uint32 scalar, 0.
    """
    return jnp.zeros((), jnp.uint32)


def send(
    x: Any,
    axis_name: AxisName,
    perm: Sequence[tuple[int, int]],
    token: jax.Array | None = None,
    *,
    tag: int = 0,
    timeout: float | None = None,
) -> jax.Array:
    """Sends ``x`` from each source to its target.

    Every rank calls it; ranks that are no source send nothing. It is buffered: the token is ready when ``x`` is copied,
    received or not. Sends and receives with one ``tag`` over the same ranks match in the order in which they are
    called, which the token chain fixes: pass each call's token to the next. Use the last token, too: JAX drops a `recv`
    of which neither value nor token is used, and what was sent to it meets the next `recv` of that tag.

    On GPUs (experimental: it has run on one GPU only) a rank may be 16 messages of one tag ahead of their receives,
    fewer where they are longer than 4 MiB, but two of any size: a further send waits for a receive, up to the deadline.

    Args:
        x: An array of the same shape and dtype on all ranks: bool, integers of 8 to 64 bits, floats from float8 to
            float64, complex64 or complex128.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        perm: Pairs (source, target) of ranks. A rank is at most once a source and once a target.
        token: What the call before it in the chain has returned. None begins a chain.
        tag: Any integer: messages of one tag between the same ranks match in the order of the calls.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        The token for the next call of the chain: a uint32 scalar.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: ``x`` is no array or of another dtype, or ``tag`` is no integer.
        ValueError: At trace time: ``perm`` repeats a rank or names one that does not exist, or ``timeout`` is out of
            range.
        NotImplementedError: At trace time: ``axis_name`` is an axis of `jax.vmap`, or the call is to be differentiated;
            `jaxring.permute` serves both.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        From rank 0 to rank 1 of an axis "pipe":

            token = jaxring.send(x, "pipe", [(0, 1)])
            y, token = jaxring.recv(x, "pipe", [(0, 1)], token)
    """
    axes = resolve("send", axis_name)
    pairs = checks.permutation("send", perm, axes)
    tag = checks.integer("jaxring.send: tag", tag)
    options = checks.options("send", axes, None, None, None, timeout, call_site())._replace(perm=pairs, tag=tag)
    leaf = checks.array("send", x)
    checks.movable("send", leaf)
    oracle.leave_out(Unchecked.MESSAGE, "send", options.site)
    operands = [cast_varying(v, axes, options) for v in (leaf, new_token() if token is None else token)]
    sent: jax.Array = send_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]
    return sent


def recv(
    like: Any,
    axis_name: AxisName,
    perm: Sequence[tuple[int, int]],
    token: jax.Array | None = None,
    *,
    tag: int = 0,
    timeout: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Receives what the matching `send` sends.

    The axes over which the sent value varies are not known here: under ``check_vma=True`` the received value is typed
    as varying over all manual axes of the mesh.

    Args:
        like: An array or `jax.ShapeDtypeStruct` with the value's shape and dtype.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        perm: Pairs (source, target) of ranks. A rank is at most once a source and once a target.
        token: What the call before it in the chain has returned. None begins a chain.
        tag: Any integer: messages of one tag between the same ranks match in the order of the calls.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        ``(value, token)``: the value that came, zeros on ranks that are no target; and the token for the next call of
        the chain, a uint32 scalar.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: ``like`` has no shape or dtype, or one that is not served, or ``tag`` is no integer.
        ValueError: At trace time: ``perm`` repeats a rank or names one that does not exist, or ``timeout`` is out of
            range.
        NotImplementedError: At trace time: ``axis_name`` is an axis of `jax.vmap`, or the call is to be differentiated;
            `jaxring.permute` serves both.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        From rank 0 to rank 1 of an axis "pipe":

            y, token = jaxring.recv(jax.ShapeDtypeStruct((8,), "float32"), "pipe", [(0, 1)], token)
    """
    axes = resolve("recv", axis_name)
    pairs = checks.permutation("recv", perm, axes)
    tag = checks.integer("jaxring.recv: tag", tag)
    options = checks.options("recv", axes, None, None, None, timeout, call_site())._replace(perm=pairs, tag=tag)
    if not (hasattr(like, "shape") and hasattr(like, "dtype")):
        raise TypeError(f"jaxring.recv: like must be an array or a jax.ShapeDtypeStruct, not {shown(like)}.")
    checks.movable("recv", like)
    oracle.leave_out(Unchecked.MESSAGE, "recv", options.site)
    token = cast_varying(new_token() if token is None else token, axes, options)
    varying = tuple(name for name, _ in axes.mesh if name in jax.sharding.get_abstract_mesh().manual_axes)
    what = {"shape": tuple(like.shape), "dtype": jnp.dtype(like.dtype), "varying": varying}
    value, token = recv_p.bind(token, **what, axes=axes, options=options)  # type: ignore[no-untyped-call]
    return value, token


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: AxisName,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """All-to-all of uneven parts, as `jax.lax.ragged_all_to_all`, which has no CPU version.

    To rank j go the ``send_sizes[j]`` rows of ``operand`` from ``input_offsets[j]``; they land at row
    ``output_offsets[j]`` of its ``output``, whose other rows stay. ``recv_sizes[i]`` rows come from rank i.

    The gradient of a row that goes to several ranks is the sum of their parts. By JAX's own rules, which hold for
    `jax.lax`'s function, `jaxring.lax`'s and under `install`, it is one rank's part.

    Args:
        operand: ``[rows, ...]``: bool, integers of 8 to 64 bits, floats from float8 to float64, complex64 or
            complex128.
        output: ``[rows here, ...]``, of the dtype and the other dimensions of ``operand``: the result where nothing
            lands.
        input_offsets: Integers ``[ranks]``: the first row of ``operand`` for each rank.
        send_sizes: Integers ``[ranks]``: how many rows each rank gets.
        output_offsets: Integers ``[ranks]``: at which row of that rank's ``output`` they land.
        recv_sizes: Integers ``[ranks]``: how many rows come from each rank.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "direct", "deterministic", which is the same, or, on CPUs, "pxn" or "multileader". None lets the
            tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        An array with the shape and dtype of ``output``.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: an operand is no array, or its dtype is not served.
        ValueError: At trace time: shapes or dtypes do not fit each other, or an option does not serve the call.
        NotImplementedError: At trace time: ``axis_name`` is an axis of `jax.vmap`.
        jax.errors.JaxRuntimeError: When the program runs: sizes disagree or reach past an end, or a rank is lost or
            late.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            jaxring.ragged_all_to_all(rows, jnp.zeros_like(rows), begins, sizes, lands, comes, axis_name="data")
    """
    axes = resolve("ragged_all_to_all", axis_name, axis_index_groups)
    options = ragged_options("ragged_all_to_all", axes, algorithm, timeout)
    operand, output = (checks.array("ragged_all_to_all", v) for v in (operand, output))
    checks.movable("ragged_all_to_all", operand)
    vectors = [checks.array("ragged_all_to_all", v) for v in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    checks.ragged(operand, output, vectors, axes)
    vectors = [v.astype(jnp.int64 if v.dtype.itemsize > 4 else jnp.int32) for v in vectors]
    # A rank knows where its rows land at others; each receiver has to know it of the others' rows, and how many come.
    lands, comes = (
        all_to_all(
            v, axis_name, 0, 0, tiled=True, axis_index_groups=axis_index_groups, algorithm=algorithm, timeout=timeout
        )
        for v in (vectors[2], vectors[1])
    )
    operands = [operand, output, vectors[0], vectors[1], lands, vectors[3], comes]
    operands = cast_alike(operands, axes, options)
    oracle.leave_out(Unchecked.RAGGED, "ragged_all_to_all", options.site)
    result: jax.Array = ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]
    return result


def ragged_options(what: str, axes: Axes, algorithm: str | None, timeout: float | None) -> Options:
    """The checked options of an all-to-all of uneven parts. ValueError for an algorithm that does not serve it.

    Nothing on the way knows the lengths of others' parts, so it takes the algorithms of jaxring's own, which pass none
    on.
    """
    if algorithm is not None and algorithm not in serving("all_to_all"):
        raise ValueError(
            f"jaxring.{what}: algorithm {algorithm!r} does not serve parts of any length; use one of "
            f"{', '.join(serving('all_to_all'))}."
        )
    return checks.options("ragged_all_to_all", axes, None, algorithm, None, timeout, call_site())
