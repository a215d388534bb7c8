#include "reduce/exact/digits.h"

#include <algorithm>
#include <cstring>

#include "reduce/fixed_point.h"

namespace jaxring {
namespace {

// Sums beside each other that are made together, so that a cache line of terms is read once.
constexpr size_t kTogether = 16;

template <class Format>
struct Digits {
  using Total = FixedPoint<Format>;
  using Bits = typename Format::Bits;

  static int Words(int width) { return Total::Words(width); }

  static void Give(int width, const void* terms, size_t outer, size_t count, size_t inner, uint32_t* words) {
    const char* from = static_cast<const char*>(terms);
    for (size_t o = 0; o < outer; ++o) {
      for (size_t begin = 0; begin < inner; begin += kTogether) {
        const size_t n = std::min(kTogether, inner - begin);
        Total totals[kTogether];
        for (size_t c = 0; c < count; ++c) {
          const char* row = from + ((o * count + c) * inner + begin) * sizeof(Bits);
          for (size_t i = 0; i < n; ++i) {
            Bits bits;
            std::memcpy(&bits, row + i * sizeof bits, sizeof bits);
            totals[i].Add(bits);
          }
          if ((c + 1) % Total::kMostTerms == 0) {
            for (Total& total : totals) total.Carry();
          }
        }
        uint32_t* to = words + o * Total::Words(width) * inner + begin;
        for (size_t i = 0; i < n; ++i) totals[i].Give(width, to + i, inner);
      }
    }
  }

  static void Round(int width, const uint32_t* words, size_t outer, size_t inner, void* sums) {
    char* to = static_cast<char*>(sums);
    for (size_t o = 0; o < outer; ++o) {
      for (size_t i = 0; i < inner; ++i) {
        Total total;
        total.Take(width, words + o * Total::Words(width) * inner + i, inner);
        const Bits bits = total.Round();
        std::memcpy(to + (o * inner + i) * sizeof bits, &bits, sizeof bits);
      }
    }
  }
};

// Calls `use` with the format of the dtype, if it has sums.
template <class Use>
void WithFormat(DType dtype, Use use) {
  switch (dtype) {
    case DType::kF16:
      return use(Digits<Float16Format>{});
    case DType::kBF16:
      return use(Digits<Bfloat16Format>{});
    case DType::kF32:
      return use(Digits<Float32Format>{});
    case DType::kF64:
      return use(Digits<Float64Format>{});
    default:
      return;
  }
}

}  // namespace

int ExactWords(DType dtype, int width) {
  int words = 0;
  WithFormat(dtype, [&](auto digits) { words = digits.Words(width); });
  return words;
}

void GiveExactSums(DType dtype, int width, const void* terms, size_t outer, size_t count, size_t inner,
                   uint32_t* words) {
  WithFormat(dtype, [&](auto digits) { digits.Give(width, terms, outer, count, inner, words); });
}

void RoundExactSums(DType dtype, int width, const uint32_t* words, size_t outer, size_t inner, void* sums) {
  WithFormat(dtype, [&](auto digits) { digits.Round(width, words, outer, inner, sums); });
}

}  // namespace jaxring
