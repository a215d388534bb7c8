// Block-wise quantisation of float32: what compressed collectives send. docs/concepts/compression.md says what the
// formats are, and how far a value may be off.
//
// A block holds kQuantBlock elements. Of the scaled formats it is a float32 scale and a code for each element, of
// bfloat16 the codes alone. Within a block, codes lie so that no instruction set has to permute lanes: a 32-bit word j
// holds the elements j, j + words, j + 2 * words, ..., the first in the lowest bits. jaxring/compress/portable.py
// computes the same bits by jax.numpy.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxring {

// The numbers are those of jaxring/compress/formats.py.
enum class QuantFormat : uint8_t { kInt8 = 0, kInt4, kF8E4M3, kBF16 };
inline constexpr int kQuantFormatCount = 4;
inline constexpr size_t kQuantBlock = 128;

constexpr size_t QuantBlocks(size_t elements) { return (elements + kQuantBlock - 1) / kQuantBlock; }

// How values are rounded to codes: to nearest even, or up or down at random, so that the mean is the value. The random
// bits are those of Threefry-2x32 under the key (seed, stream); four elements share a counter, and the first element's
// is `first_word`.
struct Rounding {
  bool stochastic = false;
  uint32_t seed = 0;
  uint32_t stream = 0;
  uint64_t first_word = 0;
};

// A key of random bits, as JAX's side passes it: the seed, the number of the rank's bits, and the row of the rank in
// arrays of all ranks. The two hops of an all-reduce have streams of their own.
inline constexpr size_t kQuantKeyWords = 3;
inline Rounding RoundingOf(const uint32_t* key, bool stochastic, uint32_t hop, uint64_t first_word) {
  return {stochastic, key[0], 2 * key[1] + hop, first_word};
}

// Counters of one block's random bits.
inline constexpr size_t kQuantWords = kQuantBlock / 4;

// The row of an array that its rank has as it is, and that needs no codes.
struct OwnRow {
  static constexpr size_t kNone = ~size_t{0};
  size_t row = kNone;
  // Whether the encoded array has no place for it, so that the rows behind it move up.
  bool left_out = false;
  // Part of each instruction set's code: see reduce/vectors.h.
  [[gnu::always_inline]] size_t place(size_t other) const { return other - (left_out && other > row ? 1 : 0); }
};

// The rows of an encoded array from one block on, `stride` bytes apart, and the values of the own row, if there is one.
struct EncodedRows {
  const char* codes;
  size_t stride;
  size_t rows;
  OwnRow own;
  const float* values;
};

// Where the values of codes go; null: nowhere. `stream` asks for non-temporal stores. One format's functions leave the
// fence after these (StreamFence) to their caller.
struct DecodeTo {
  float* values = nullptr;
  bool stream = false;
};

// One format's functions of one instruction set. They must run in the IEEE float mode. No buffer needs alignment.
struct Quantizers {
  size_t block_bytes;
  // Encodes `elements` values, the last block filled up with zeros. Where `error` is given, error[i] is the value minus
  // what its code decodes to, for finite values, and 0 for others. It may be `from` itself.
  void (*encode)(char* to, float* error, const float* from, size_t elements, const Rounding& rounding);
  // Decodes `elements` values.
  void (*decode)(const DecodeTo& to, const char* from, size_t elements);
  // sum[i] = row 0's value + row 1's + ..., times 1 / `divisor` unless that is 0, for `elements` values in whole
  // blocks.
  void (*sum)(float* sum, const EncodedRows& rows, uint64_t divisor, size_t elements);
  // The same, encoded, the last block filled up with zeros; the own row has whole blocks. `error` as above. `decoded`
  // gets what the codes stand for.
  void (*encode_sum)(char* to, float* error, const DecodeTo& decoded, const EncodedRows& rows, uint64_t divisor,
                     size_t elements, const Rounding& rounding);
};

// The functions for this CPU, or for the instruction set that ForceInstructionSet has chosen.
const Quantizers& FindQuantizers(QuantFormat format);

// An array of `rows` rows of `row_elements` elements each, and the same array encoded, row by row in whole blocks.
struct QuantShape {
  QuantFormat format;
  size_t rows;
  size_t row_elements;
  OwnRow own = {};
  size_t row_bytes() const;
  size_t encoded_rows() const { return rows - (own.left_out ? 1 : 0); }
};

// The own row's values: the first `elements` of them, the others count as zeros.
struct OwnValues {
  const float* values = nullptr;
  size_t elements = 0;
};

// Encodes rows of which only the first `elements` elements exist; the others count as zeros. The codes of the own row,
// if the encoded array has a place for them, stay as they are, and its errors are 0.
void QuantizeRows(const QuantShape& shape, char* to, float* error, const float* from, size_t elements,
                  const Rounding& rounding);
// Decodes rows of which only the first `elements` elements are wanted. The own row of `to` stays as it is.
void DequantizeRows(const QuantShape& shape, const DecodeTo& to, const char* from, size_t elements);
// The sum over the rows, or their mean, in float32 and in the order of the rows, as float32.
void SumRows(const QuantShape& shape, float* to, const char* from, uint64_t divisor, const OwnValues& own);
// The same, encoded again as one row. `error`, unless it is null, gets what encode says, and `decoded` as many of the
// codes' values as the own row has: to decode them takes less time while they are at hand. They may take the place of
// the own row's values, of which every block is read before it is written.
void SumRowsQuantized(const QuantShape& shape, char* to, float* error, const DecodeTo& decoded, const char* from,
                      uint64_t divisor, const OwnValues& own, const Rounding& rounding);

}  // namespace jaxring
