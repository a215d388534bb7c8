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


def quantize(form: Format, x: Any, key: Any, rows: Rows, rounding: Rounding, *, feedback: bool = False) -> Any:
    """See `jaxring.compress.native.quantize`."""
    part = x[rows.first : rows.first + rows.count]
    padded = jnp.pad(part, (0, rows.rows * rows.row_elements - rows.count)).reshape(rows.rows, rows.row_elements)
    blocks = _blocks(padded)
    random = _random(key, 0, rounding.first_word, blocks.shape) if rounding.stochastic else None
    codes = _encode(form, blocks, random)
    encoded = codes.reshape(rows.rows, -1)
    if not feedback:
        return encoded
    decoded = _flat(_decode(form, codes), rows.row_elements).reshape(-1)[: rows.count]
    return encoded, _left_out(part, decoded)


def sum_rows(form: Format, codes: Any, elements: int, divisor: int) -> Any:
    """See `jaxring.compress.native.sum_rows`."""
    blocks = _rows(form, codes)

    def add(total: Any, row: Any) -> tuple[Any, None]:
        return total + _decode(form, row), None

    total, _ = jax.lax.scan(add, _decode(form, blocks[0]), blocks[1:], unroll=min(8, len(blocks)))
    return _flat(total * (np.float32(1) / np.float32(divisor)) if divisor else total, elements)


def sum_quantized(
    form: Format, codes: Any, key: Any, elements: int, divisor: int, rounding: Rounding, *, feedback: bool = False
) -> Any:
    """See `jaxring.compress.native.sum_quantized`."""
    total = sum_rows(form, codes, elements, divisor)
    blocks = _blocks(total)
    random = _random(key, 1, rounding.first_word, blocks.shape) if rounding.stochastic else None
    encoded = _encode(form, blocks, random)
    if not feedback:
        return encoded.reshape(-1)
    return encoded.reshape(-1), _left_out(total, _flat(_decode(form, encoded), elements))


def dequantize(form: Format, codes: Any, rows: Rows, elements: int, onto: Any = None) -> Any:
    """See `jaxring.compress.native.dequantize`."""
    values = _flat(_decode(form, _rows(form, codes)), rows.row_elements).reshape(-1)[: rows.count]
    if rows.count == elements:
        return values
    onto = jnp.zeros(elements, jnp.float32) if onto is None else onto
    return jax.lax.dynamic_update_slice(onto, values, (rows.first,))
