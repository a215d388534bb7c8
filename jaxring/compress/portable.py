"""The arithmetic of compressed collectives in jax.numpy, for platforms other than CPUs.

It gives the bits that ffi/quantize/ gives, but for subnormal numbers where the platform flushes these to zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from jaxring.compress.formats import BLOCK
from jaxring.compress.native import Own

if TYPE_CHECKING:
    from jaxring.compress.formats import Format
    from jaxring.compress.native import Rounding, Rows

_SIGN = np.uint32(0x80000000)
_INFINITY = 0x7F800000
_WORDS = BLOCK // 4


def _bits(x: Any) -> Any:
    return jax.lax.bitcast_convert_type(x, jnp.uint32)


def _float(bits: Any) -> Any:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _random(key: Any, hop: int, first_word: int, shape: tuple[int, ...]) -> Any:
    """16 bits for each element of blocks of that shape, as uint32."""
    blocks = shape[:-1]
    count = _WORDS
    for size in blocks:
        count *= size
    low = jnp.arange(count, dtype=jnp.uint32) + jnp.uint32(first_word & 0xFFFFFFFF)
    high = jnp.full(count, first_word >> 32, jnp.uint32)
    keys = jnp.stack([key[0], 2 * key[1] + jnp.uint32(hop)])
    words = threefry_2x32(keys, jnp.concatenate([low, high])).reshape(2, *blocks, _WORDS)
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    return jnp.concatenate(halves, axis=-1)


def _centered(random: Any) -> Any:
    """Uniform on (-1/2, 1/2)."""
    return (random.astype(jnp.float32) + 0.5) * (1 / 65536) - 0.5


def _scale(largest: Any, limit: Any) -> Any:
    scale = _bits(_float(largest) / limit)
    up = jnp.where(scale >= 0x00010000, (scale + 0xFF) & np.uint32(0xFFFFFF00), scale + (largest != 0))
    return jnp.where(largest >= 0x7F000000, (scale & np.uint32(0xFFFFFF00)) - 0x100, up)


def _integers(value: Any, random: Any, limit: Any) -> Any:
    value = value if random is None else value + _centered(random)
    return jnp.clip(jnp.round(value), -limit, limit).astype(jnp.int32).astype(jnp.uint32)


def _floats8(value: Any, random: Any, limit: Any) -> Any:
    if random is not None:
        normal = _float((_bits(value) + (random << 4)) & np.uint32(0xFFF00000))
        subnormal = jnp.round(value * 512 + _centered(random)).astype(jnp.int32) / jnp.float32(512)  # no -0
        value = jnp.where(_bits(value) & 0x7FFFFFFF < 121 << 23, subnormal, normal)
    value = jnp.clip(value, -limit, limit).astype(jnp.float8_e4m3fn)
    return jax.lax.bitcast_convert_type(value, jnp.uint8).astype(jnp.uint32)


def _halves(value: Any, random: Any) -> Any:
    bits = _bits(value)
    if random is not None:
        bits = jnp.where(bits & 0x7FFFFFFF >= _INFINITY, bits, (bits + random) & np.uint32(0xFFFF0000))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return jnp.where(bits & 0x7FFFFFFF > _INFINITY, (bits | 0x400000) >> 16, rounded)


def _packed(form: Format, codes: Any) -> Any:
    """Codes of whole blocks as bytes."""
    per_word = 32 // form.bits
    rows = (codes & ((1 << form.bits) - 1)).reshape(*codes.shape[:-1], per_word, BLOCK // per_word)
    words = jnp.zeros((*codes.shape[:-1], BLOCK // per_word), jnp.uint32)
    for place in range(per_word):
        words |= rows[..., place, :] << (form.bits * place)
    return _bytes(words)


def _bytes(words: Any) -> Any:
    found = jax.lax.bitcast_convert_type(words, jnp.uint8)
    return found.reshape(*words.shape[:-1], 4 * words.shape[-1])


def _words(codes: Any) -> Any:
    return jax.lax.bitcast_convert_type(codes.reshape(*codes.shape[:-1], -1, 4), jnp.uint32)


def _encode(form: Format, x: Any, random: Any) -> Any:
    """Blocks (..., BLOCK) as bytes (..., block_bytes)."""
    if not form.scaled:
        return _packed(form, _halves(x, random))
    magnitude = _bits(x) & 0x7FFFFFFF
    finite = magnitude < _INFINITY
    marked = ~jnp.all(finite, axis=-1, keepdims=True)
    limit = jnp.where(marked, form.marked_limit, form.limit).astype(jnp.float32)
    largest = jnp.max(jnp.where(finite, magnitude, 0), axis=-1, keepdims=True)
    scale = _scale(largest, limit)
    value, step = jnp.where(finite, x, 0), jnp.where(largest == 0, jnp.float32(1), _float(scale))
    value = jnp.where(_float(scale) >= 2.0**-100, value * (1 / step), value / step)
    codes = (_floats8 if form.name == "fp8_e4m3" else _integers)(value, random, limit)
    infinite = jnp.where(_bits(x) >= _SIGN, form.minus_infinity, form.infinity).astype(jnp.uint32)
    other = jnp.where(magnitude > _INFINITY, jnp.uint32(form.nan), infinite)
    codes = jnp.where(finite, codes, other)
    stored = scale | jnp.where(marked, _SIGN, jnp.uint32(0))
    return jnp.concatenate([_bytes(stored), _packed(form, codes)], axis=-1)


def _decode(form: Format, codes: Any) -> Any:
    """Bytes (..., block_bytes) as blocks (..., BLOCK)."""
    words = _words(codes)
    scale, words = (words[..., :1], words[..., 1:]) if form.scaled else (None, words)
    places = [words >> (form.bits * place) for place in range(32 // form.bits)]
    code = jnp.concatenate(places, axis=-1) & ((1 << form.bits) - 1)
    if scale is None:
        return _float(code << 16)
    if form.name == "fp8_e4m3":
        value = jax.lax.bitcast_convert_type(code.astype(jnp.uint8), jnp.float8_e4m3fn).astype(jnp.float32)
    else:
        shift = 32 - form.bits
        value = ((code << shift).astype(jnp.int32) >> shift).astype(jnp.float32)
    value = value * _float(scale & 0x7FFFFFFF)
    marked = scale >= _SIGN
    for special, meaning in ((form.infinity, jnp.inf), (form.minus_infinity, -jnp.inf), (form.nan, jnp.nan)):
        value = jnp.where(marked & (code == special), jnp.float32(meaning), value)
    return value


def _blocks(x: Any) -> Any:
    """(..., n) as (..., blocks, BLOCK), filled up with zeros."""
    short = -x.shape[-1] % BLOCK
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)])
    return x.reshape(*x.shape[:-1], -1, BLOCK)


def _flat(blocks: Any, elements: int) -> Any:
    return blocks.reshape(*blocks.shape[:-2], -1)[..., :elements]


def _left_out(x: Any, decoded: Any) -> Any:
    difference = x - decoded
    return jnp.where(jnp.isfinite(difference), difference, 0)


def _rows(form: Format, codes: Any) -> Any:
    return codes.reshape(*codes.shape[:-1], -1, form.block_bytes)


def _others(key: Any, rows: Rows) -> Any:
    """The rows that an array of codes has a place for."""
    places = jnp.arange(rows.encoded)
    return places + (places >= key[2]) if rows.own is Own.LEFT_OUT else places


def _all_rows(form: Format, codes: Any, key: Any, rows: Rows) -> Any:
    """Codes of all rows, any in a row that is left out."""
    codes = _rows(form, codes).reshape(rows.encoded, -1, form.block_bytes)
    if rows.own is not Own.LEFT_OUT:
        return codes
    return jnp.zeros((rows.rows, *codes.shape[1:]), codes.dtype).at[_others(key, rows)].set(codes)


def _as_rows(x: Any, rows: Rows) -> Any:
    return jnp.pad(x, (0, rows.rows * rows.row_elements - rows.count)).reshape(rows.rows, rows.row_elements)


def quantize(form: Format, x: Any, key: Any, rows: Rows, rounding: Rounding, *, feedback: bool = False) -> Any:
    """See `jaxring.compress.native.quantize`."""
    whole = _as_rows(x, rows)
    blocks = _blocks(whole)
    random = _random(key, 0, rounding.first_word, blocks.shape) if rounding.stochastic else None
    codes = _encode(form, blocks, random)
    encoded = codes.reshape(rows.rows, -1)[_others(key, rows)]
    if not feedback:
        return encoded
    left = _left_out(whole, _flat(_decode(form, codes), rows.row_elements))
    if rows.own is not Own.ENCODED:
        left = left.at[key[2]].set(0)
    return encoded, left.reshape(-1)[: rows.count]


def sum_rows(form: Format, codes: Any, key: Any, rows: Rows, x: Any, divisor: int) -> Any:
    """See `jaxring.compress.native.sum_rows`."""
    blocks = _all_rows(form, codes, key, rows)
    encoded = jnp.ones(rows.rows, bool)
    mine = jnp.zeros((*blocks.shape[1:-1], BLOCK), jnp.float32)
    if rows.own is not Own.ENCODED:
        encoded = encoded.at[key[2]].set(False)
        mine = _blocks(_as_rows(x, rows)[key[2]])

    def value(row: Any) -> Any:
        return jnp.where(row[1], _decode(form, row[0]), mine)

    def add(total: Any, row: Any) -> tuple[Any, None]:
        return total + value(row), None

    first, rest = (blocks[0], encoded[0]), (blocks[1:], encoded[1:])
    total, _ = jax.lax.scan(add, value(first), rest, unroll=min(8, rows.rows))
    return _flat(total * (np.float32(1) / np.float32(divisor)) if divisor else total, rows.row_elements)


def sum_quantized(
    form: Format,
    codes: Any,
    key: Any,
    rows: Rows,
    x: Any,
    divisor: int,
    rounding: Rounding,
    *,
    feedback: bool = False,
) -> Any:
    """See `jaxring.compress.native.sum_quantized`."""
    total = sum_rows(form, codes, key, rows, x, divisor)
    blocks = _blocks(total)
    random = _random(key, 1, rounding.first_word, blocks.shape) if rounding.stochastic else None
    encoded = _encode(form, blocks, random)
    values = _flat(_decode(form, encoded), rows.row_elements)
    whole = jnp.zeros((rows.rows, rows.row_elements), jnp.float32).at[key[2]].set(values)
    results = encoded.reshape(-1), whole.reshape(-1)[: rows.count]
    return (*results, _left_out(total, values)) if feedback else results


def dequantize(form: Format, codes: Any, key: Any, rows: Rows, onto: Any = None) -> Any:
    """See `jaxring.compress.native.dequantize`."""
    values = _flat(_decode(form, _all_rows(form, codes, key, rows)), rows.row_elements)
    if rows.own is not Own.ENCODED:
        values = values.at[key[2]].set(_as_rows(onto, rows)[key[2]])
    return values.reshape(-1)[: rows.count]
