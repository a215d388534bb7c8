"""What a collective should give, computed by NumPy: the data, the expected values and how far a result may be off."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

from jaxring.plan import dtypes

OPS = tuple(dtypes.REDUCE_OPS)
UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def served(op: str, name: str) -> bool:
    """Whether a reduction has a meaning for a dtype. Written out here, so that the library's table is tested too."""
    if name == "bool":
        return op in ("sum", "min", "max", "and", "or", "xor")
    if name.startswith(("int", "uint")):
        return op != "mean"
    if name.startswith("complex"):
        return op in ("sum", "prod", "mean")
    return op in ("sum", "prod", "min", "max", "mean")


def served_pairs() -> list[tuple[str, str]]:
    """(op, dtype) of every reduction there is."""
    return [(op, name) for name in dtypes.DTYPES for op in OPS if served(op, name)]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal in shape, dtype and every byte."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Data of which every bit is random, but for bool, which has one."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = rng.integers(0, 256, count, dtype=np.uint8)
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Case:
    """``x``: one row per rank. ``rounded``: the columns whose result depends on the order in which rows are folded."""

    x: np.ndarray
    rounded: np.ndarray


def case(op: str, name: str, ranks: int, columns: int, seed: int = 0) -> Case:
    """Data for a reduction: special values, values that any order folds exactly, and random ones.

    The special values come first, as many as fit; half of the rest is exact.
    """
    rng = np.random.default_rng([seed, ranks, dtypes.DTYPE_CODES[name], OPS.index(op)])
    dtype = np.dtype(name)
    if dtype == np.bool_ or np.issubdtype(dtype, np.integer):
        return Case(random_bits(rng, (ranks, columns), dtype), np.zeros(columns, bool))
    special = _special(op, name, ranks)[:, :columns]
    rest = columns - special.shape[1]
    exact = _exact(rng, op, name, (ranks, rest // 2))
    random = _random(rng, op, name, (ranks, rest - rest // 2))
    x = np.concatenate([special, exact, random], axis=1)
    return Case(x, np.arange(columns) >= columns - random.shape[1])


def _exact(rng: np.random.Generator, op: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if op == "prod":
        if name.startswith("complex"):
            values = np.array([1, -1, 1j, -1j, 1 + 1j, 1 - 1j])
        else:
            values = np.array([1.0, -1.0, 2.0, -2.0, 0.5, 0.5])
        return rng.choice(values, shape).astype(name)
    limit = 8 if name.startswith("float8") else 250
    x = rng.integers(-limit, limit + 1, shape).astype(np.float64)
    if name.startswith("complex"):
        x = x + 1j * rng.integers(-limit, limit + 1, shape)
    return x.astype(name)


def _random(rng: np.random.Generator, op: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if op == "prod":
        x = rng.uniform(0.6, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
    else:
        x = rng.normal(size=shape) * rng.choice([1.0, 1e-2] if name.startswith("float8") else [1.0, 1e3, 1e-4], shape)
    if name.startswith("complex"):
        x = x * np.exp(2j * np.pi * rng.uniform(size=shape))
    return x.astype(name)


def _special(op: str, name: str, ranks: int) -> np.ndarray:
    """Columns of NaN, infinities, overflow, zeros and subnormal numbers, such that the order does not matter."""
    if name.startswith("complex"):
        if op == "prod":
            return np.zeros((ranks, 0), name)
        # Special real parts beside plain imaginary ones, and the other way round.
        real = _special(op, "float32" if name == "complex64" else "float64", ranks)
        x = np.zeros((ranks, 2 * real.shape[1]), name)
        x.real[:, : real.shape[1]] = real
        x.imag[:, real.shape[1] :] = real
        return x
    info = ml_dtypes.finfo(name)
    largest, tiny = float(info.max), float(info.smallest_subnormal)
    inf = np.nan if name == "float8_e4m3fn" else np.inf
    fill = 1.0 if op == "prod" else 0.0
    lows, highs = [0, min(1, ranks - 1)], ranks - 1
    columns = []

    def put(default: float, *at: tuple[int, float]) -> None:
        column = np.full(ranks, default)
        for rank, value in at:
            column[rank] = value
        columns.append(column)

    put(1.0, (lows[1], np.nan))
    put(np.nan)
    put(1.0, (highs, inf))
    put(1.0, (0, -inf))
    put(1.0, (0, inf), (highs, -inf))
    put(fill, (0, largest), (highs, largest))
    put(fill, (0, -largest))
    put(0.0)
    put(-0.0)
    put(fill, (highs, tiny))
    put(tiny)
    put(fill, (0, -3 * tiny), (highs, tiny))
    if name == "bfloat16":
        put(1.0, (0, 256.0))  # 263 is 264 when it is rounded once, and 256 when at every step
        put(1.0, (highs, 256.0))
    with np.errstate(all="ignore"):
        return np.stack(columns, axis=1).astype(name)


def bounds(op: str, data: Case) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest result that is right, which are the same but in the rounded columns.

    Small floats accumulate in float32 and round once: every result between the roundings of both ends of the
    accumulator's error interval is right. float32 and float64 may be off by n eps times the sum of magnitudes.
    """
    x, rounded = data.x, data.rounded
    with np.errstate(all="ignore"):
        if x.dtype == np.bool_ and op == "sum":
            total = x.sum(axis=0, dtype=np.int32)
            return total, total
        if np.issubdtype(x.dtype, np.complexfloating):
            return _complex_bounds(op, x, rounded)
        if x.dtype == np.bool_ or np.issubdtype(x.dtype, np.integer):
            total = UFUNCS[op].reduce(x, axis=0, dtype=x.dtype)
            return total, total
        return _float_bounds(op, x, rounded)


def _float_bounds(op: str, x: np.ndarray, rounded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ranks = len(x)
    wide = np.dtype(np.float32) if x.dtype.itemsize <= 2 else x.dtype
    fold = UFUNCS["sum" if op == "mean" else op]
    plain = fold.reduce(x.astype(wide), axis=0, dtype=wide)
    if op == "mean":
        plain = plain / wide.type(ranks)
    plain = plain.astype(x.dtype)
    if op in ("min", "max"):
        return plain, plain
    far = x.astype(np.longdouble)
    exact, eps = fold.reduce(far, axis=0), np.finfo(wide).eps
    error = ranks * eps * (np.abs(exact) if op == "prod" else np.abs(far).sum(axis=0))
    if op == "mean":
        exact = exact / ranks
        error = error / ranks + eps * np.abs(exact)
    low, high = ((exact + sign * error).astype(wide).astype(x.dtype) for sign in (-1, 1))
    return np.where(rounded, low, plain).astype(x.dtype), np.where(rounded, high, plain).astype(x.dtype)


def _complex_bounds(op: str, x: np.ndarray, rounded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if op in ("sum", "mean"):
        real, imag = _float_bounds(op, x.real, rounded), _float_bounds(op, x.imag, rounded)
    else:
        exact = np.multiply.reduce(x.astype(np.clongdouble), axis=0)
        eps = np.finfo(x.real.dtype).eps
        error = np.where(rounded, np.sqrt(5) * len(x) * eps * np.abs(exact), 0)
        real, imag = (
            tuple((part + sign * error).astype(x.real.dtype) for sign in (-1, 1)) for part in (exact.real, exact.imag)
        )
    low, high = np.empty(real[0].shape, x.dtype), np.empty(real[0].shape, x.dtype)
    low.real, low.imag, high.real, high.imag = real[0], imag[0], real[1], imag[1]
    return low, high


def wrong(y: np.ndarray, limits: tuple[np.ndarray, np.ndarray]) -> str:
    """What is wrong with a result, "" if nothing."""
    low, high = limits
    if y.shape != low.shape or y.dtype != low.dtype:
        return f"got {y.dtype}{y.shape}, expected {low.dtype}{low.shape}"
    if np.issubdtype(y.dtype, np.complexfloating):
        parts = [wrong(getattr(y, part), (getattr(low, part), getattr(high, part))) for part in ("real", "imag")]
        return "; ".join(filter(None, parts))
    if y.dtype.kind in "biu":
        bad = y != low
    else:
        wide = np.float64
        a, b, c = y.astype(wide), low.astype(wide), high.astype(wide)
        bad = ~(((a >= b) & (a <= c)) | (np.isnan(a) & np.isnan(b) & np.isnan(c)))
    if not bad.any():
        return ""
    at = np.unravel_index(int(bad.argmax()), y.shape)
    first = f"first at {tuple(map(int, at))}: {y[at]!r}, right is {low[at]!r} to {high[at]!r}"
    return f"{int(bad.sum())} of {y.size} wrong, {first}"
