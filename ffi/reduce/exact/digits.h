// The two ends of a sum that several processes make: each gives the exact sum of its own terms as integers, which any
// reduction of integers adds, and then rounds what that gives. reduce/fixed_point.h has the format of the integers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/dtypes.h"

namespace jaxring {

// Words of 32 bits for each sum of the dtype, in digits of `width` bits (1 to 32); 0 if it has none: there are sums of
// float16, bfloat16, float32 and float64.
int ExactWords(DType dtype, int width);

// Terms are [outer][count][inner] of the dtype, words [outer][ExactWords][inner]: sums over `count` terms.
void GiveExactSums(DType dtype, int width, const void* terms, size_t outer, size_t count, size_t inner,
                   uint32_t* words);

// The sums [outer][inner] of the dtype, rounded to nearest even.
void RoundExactSums(DType dtype, int width, const uint32_t* words, size_t outer, size_t inner, void* sums);

}  // namespace jaxring
