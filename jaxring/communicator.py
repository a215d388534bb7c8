"""Collectives on NumPy arrays among the processes of a job, without a JAX program.

    comm = jaxring.Communicator()
    comm.all_reduce(losses, losses)

The engine, its links and its choices are those of the collectives inside programs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import jaxring._native as _native
from jaxring.errors import JaxringError
from jaxring.plan import dtypes
from jaxring.plan.collectives import COLLECTIVES, Root
from jaxring.runtime import service
from jaxring.runtime.call import CallSpec
from jaxring.settings import settings
from jaxring.tracing import checks, oracle
from jaxring.tracing.unchecked import Unchecked
from jaxring.world import launchers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.typing import Op

# A reduction, a root, or pairs of a permutation.
_Option = str | int | tuple[tuple[int, int], ...] | None


class Communicator:
    """All processes of the `jax.distributed` job, one rank each: ``rank`` of ``size``.

    Every process makes its communicators in the same order (after `jaxring.rebuild` all make new ones), calls each
    one's collectives in the same order, and from one thread at a time. Operands and results are C-contiguous arrays of
    bool, integers of 8 to 64 bits, floats from float8 to float64, complex64 or complex128, of the same shape and dtype
    on all ranks. Small messages are fastest with ``out``, because a call with the dtype and shapes of a recent one is
    found without Python.

    The collectives raise `jaxring.JaxringError` where one fails (a rank is lost or late, or ranks disagree about the
    call), ValueError for shapes, roots and pairs that do not fit, and TypeError for arrays and dtypes that are not
    served.

    Args:
        timeout: Seconds until a collective fails on every rank. None: JAXRING_TIMEOUT.

    Raises:
        ValueError: Where ``timeout`` is not positive.
        TypeError: Where ``timeout`` is no number.
        jaxring.JoinError: Where the job cannot be joined.

    Examples:
        In each process of a job:

            comm = jaxring.Communicator()
            comm.all_reduce(losses, losses)  # in place
    """

    def __init__(self, *, timeout: float | None = None) -> None:
        service.ensure_started()
        launchers.warn_if_alone()
        first: dict[int, int] = {}
        for device in jax.devices("cpu"):
            first.setdefault(device.process_index, device.id)
        self.size, self.rank = len(first), jax.process_index()
        self._devices = [first[process] for process in range(self.size)]
        self._timeout = settings().timeout if timeout is None else checks.seconds("jaxring.Communicator", timeout)
        self._name = service.job().next_communicator()
        self._calls: dict[tuple[Any, ...], _native.BufferCall] = {}
        recent = _native.RecentCalls(np.ndarray)
        # Bound once, because each attribute look-up costs a measurable part of a small message's time.
        self._again, self._remember = recent.run, recent.remember

    def all_reduce(self, x: np.ndarray, out: np.ndarray | None = None, op: Op = "sum") -> np.ndarray:
        """``op`` of all ranks' ``x``, on every rank.

        Args:
            x: An array on each rank, in the host's memory.
            out: Where the result is written, of the shape and dtype of ``x``; may be ``x``. None makes a new array.
            op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor".

        Returns:
            ``out``, or the new array, of the shape and dtype of ``x``.

        Raises:
            jaxring.JaxringError: Where the collective fails: a rank is lost or late, or ranks disagree about the call.
            ValueError: For arrays that do not fit; for an ``op`` that does not exist.
            TypeError: For what is no array, or a dtype that is not served or has no ``op``.
        """
        return self._run("all_reduce", x, out, op)

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray | None = None, op: Op = "sum") -> np.ndarray:
        """Block ``rank`` of ``op`` of all ranks' ``x``.

        Args:
            x: ``[size, ...]``: a block for each rank.
            out: Where the result is written: ``[...]``, of the dtype of ``x``. None makes a new array.
            op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor".

        Returns:
            ``out``, or the new array: ``[...]``, a block.

        Raises:
            jaxring.JaxringError: Where the collective fails: a rank is lost or late, or ranks disagree about the call.
            ValueError: For arrays that do not fit; for an ``op`` that does not exist.
            TypeError: For what is no array, or a dtype that is not served or has no ``op``.
        """
        return self._run("reduce_scatter", x, out, op)

    def all_gather(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """All ranks' ``x``, in rank order.

        Args:
            x: An array on each rank, in the host's memory.
            out: Where the result is written: ``[size, *x.shape]``, of the dtype of ``x``. None makes a new array.

        Returns:
            ``out``, or the new array: ``[size, *x.shape]``.

        Raises:
            jaxring.JaxringError: Where the collective fails: a rank is lost or late, or ranks disagree about the call.
            ValueError: For arrays that do not fit.
            TypeError: For what is no array, or a dtype that is not served.
        """
        return self._run("all_gather", x, out, None)

    def all_to_all(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Block r of the result is block ``rank`` of rank r's ``x``.

        Args:
            x: ``[size, ...]``: a block for each rank.
            out: Where the result is written: of the shape of ``x``, of the dtype of ``x``. None makes a new array.

        Returns:
            ``out``, or the new array: ``[size, ...]``.

        Raises:
            jaxring.JaxringError: Where the collective fails: a rank is lost or late, or ranks disagree about the call.
            ValueError: For arrays that do not fit.
            TypeError: For what is no array, or a dtype that is not served.
        """
        return self._run("all_to_all", x, out, None)

    def broadcast(self, x: np.ndarray, out: np.ndarray | None = None, root: int = 0) -> np.ndarray:
        """The root's ``x``, on every rank.

        Args:
            x: An array on each rank, in the host's memory. Only the root's values matter.
            out: Where the result is written: of the shape of ``x``, of the dtype of ``x``. None makes a new array.
            root: The rank whose array it is.

        Returns:
            ``out``, or the new array, of the shape and dtype of ``x``.

        Raises:
            jaxring.JaxringError: Where the collective fails: a rank is lost or late, or ranks disagree about the call.
            ValueError: For arrays that do not fit, or a ``root`` that is no rank.
            TypeError: For what is no array, or a dtype that is not served.
        """
        return self._run("broadcast", x, out, root)

    def permute(self, x: np.ndarray, pairs: Sequence[tuple[int, int]], out: np.ndarray | None = None) -> np.ndarray:
        """The ``x`` of this rank's source; zeros on ranks that are no target.

        Args:
            x: An array on each rank, in the host's memory.
            pairs: (source, target) pairs of ranks, the same on all. A rank is at most once a source and once a target.
            out: Where the result is written: of the shape of ``x``, of the dtype of ``x``. None makes a new array.

        Returns:
            ``out``, or the new array, of the shape and dtype of ``x``.

        Raises:
            jaxring.JaxringError: Where the collective fails: a rank is lost or late, or ranks disagree about the call.
            ValueError: For arrays that do not fit, or ``pairs`` that repeat a rank or name one that does not exist.
            TypeError: For what is no array, or a dtype that is not served.
        """
        there = "the communicator has"
        return self._run("permute", x, out, checks.pairs_among("Communicator.permute", pairs, self.size, there))

    def _run(self, collective: str, x: np.ndarray, out: np.ndarray | None, option: _Option) -> np.ndarray:
        try:
            # An option that is found is one that was checked: it is the same object.
            if out is not None and self._again(collective, x, out, option):
                return out
            x, option = _operand(collective, x), self._checked(collective, option)
            key = (collective, x.dtype, x.shape, option)
            call = self._calls.get(key)
            if call is None:
                call = self._calls[key] = self._make(*key)
            if out is None:
                out = np.empty(self._result(collective, x.shape), x.dtype)
            elif not isinstance(out, np.ndarray):
                raise TypeError(f"{collective}: the result must be a NumPy array, not {type(out).__name__}.")
            elif out.dtype != x.dtype:
                raise TypeError(f"{collective}: the result is {x.dtype}, and the array given for it is {out.dtype}.")
            else:
                _usable(collective, out, "result", written=True)
            call(x, out)
        except RuntimeError as error:
            raise JaxringError(str(error)) from None
        self._remember(collective, x, out, option, call)
        return out

    def _checked(self, collective: str, option: Any) -> _Option:
        """A reduction or root of a call; equal ones are equal from here on, whatever their types were."""
        if COLLECTIVES[collective].reduces:
            if not isinstance(option, str):
                raise TypeError(f"{collective}: op must be the name of a reduction, not {option!r}.")
            return option
        if COLLECTIVES[collective].root is not Root.NONE:
            root = checks.integer(f"{collective}: root", option)
            if not 0 <= root < self.size:
                raise ValueError(f"{collective}: root={root} is no rank; there are ranks 0..{self.size - 1}.")
            return root
        checked: _Option = option
        return checked

    def _result(self, collective: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return COLLECTIVES[collective].result_shape(shape, self.size)

    def _make(
        self, collective: str, dtype: np.dtype[Any], shape: tuple[int, ...], option: _Option
    ) -> _native.BufferCall:
        dtypes.dtype_code(dtype.name)
        if not dtype.isnative:
            raise TypeError(
                f"{collective}: {dtype!r} is of the other byte order; convert by x.astype('{dtype.newbyteorder('=')}')."
            )
        op = option if isinstance(option, str) else None
        root = option if isinstance(option, int) else 0  # what has no root has this one
        perm = option if isinstance(option, tuple) else ()
        if op is not None:
            dtypes.check(op, dtype)
        facts = COLLECTIVES[collective]
        if facts.blocks_in and shape[:1] != (self.size,):
            raise ValueError(f"{collective} wants one block for each of the {self.size} ranks first, not {shape}.")
        spec = CallSpec(
            collective=collective,
            op=op,
            dtype=dtype.name,
            shape=shape,
            block=math.prod(facts.block_shape(shape)),
            axes="processes",
            root=root,
            perm=perm,
            timeout=self._timeout,
            site=self._name,
            call=len(self._calls),
            devices=tuple(self._devices),
            program="",
        )
        ranks = list(range(self.size))
        oracle.leave_out(Unchecked.COMMUNICATOR, collective, self._name)
        return _native.BufferCall(spec.to_json(), ranks, self.rank, self._devices[self.rank], self._timeout)


def _operand(collective: str, x: Any) -> np.ndarray:
    """An array whose memory holds what it means."""
    if isinstance(x, jax.Array):
        x = np.asarray(x)
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{collective}: the operand must be a NumPy array, not {type(x).__name__}.")
    return _usable(collective, x, "operand", written=False)


def _usable(collective: str, x: np.ndarray, what: str, *, written: bool) -> np.ndarray:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{collective}: the {what} is a masked array, whose mask would be passed over; fill it first.")
    if not x.flags.c_contiguous:
        raise ValueError(f"{collective}: the {what} is not C-contiguous; numpy.ascontiguousarray makes a copy that is.")
    if not x.flags.aligned:
        raise ValueError(f"{collective}: the {what} is not aligned to its dtype; copy it.")
    if written and not x.flags.writeable:
        raise ValueError(f"{collective}: the array given for the result is read-only.")
    return x
