// The arithmetic of translated PTX (tools/ptx/forms.py). Registers are unsigned integers that hold bits; `s32(x)` reads
// them as a type, and `s32_(x)` gives a type's bits. Nothing here is a kernel's own arithmetic, so that a fault of the
// kernels' source is not made a second time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace jaxring::cuda::ptx {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using b16 = uint16_t;
using b32 = uint32_t;
using b64 = uint64_t;
using u16_ = uint16_t;
using u32_ = uint32_t;
using u64_ = uint64_t;
using s16_ = uint16_t;
using s32_ = uint32_t;
using s64_ = uint64_t;
using b16_ = uint16_t;
using b32_ = uint32_t;
using b64_ = uint64_t;
using f32_ = uint32_t;
using f64_ = uint64_t;
using u8_ = uint64_t;  // wider registers take a byte with zeros or with its sign
using s8_ = int64_t;

struct f32 {
  explicit f32(u32 bits) : value(std::bit_cast<float>(bits)) {}
  float value;
};
struct f64 {
  explicit f64(u64 bits) : value(std::bit_cast<double>(bits)) {}
  double value;
};

// The hardware has one NaN as a result. It is float32's 0x7fffffff; for float64 PTX leaves it open.
inline u32 Float(float value) { return std::isnan(value) ? 0x7fffffffu : std::bit_cast<u32>(value); }
inline u64 Float(double value) { return std::bit_cast<u64>(value); }

#define JAXRING_PTX_COMPARE(name, op)                                   \
  template <class T>                                                    \
  bool name(T a, T b) {                                                 \
    if constexpr (std::is_integral_v<T>)                                \
      return a op b;                                                    \
    else                                                                \
      return !std::isunordered(a.value, b.value) && a.value op b.value; \
  }
JAXRING_PTX_COMPARE(Is_lt, <)
JAXRING_PTX_COMPARE(Is_le, <=)
JAXRING_PTX_COMPARE(Is_gt, >)
JAXRING_PTX_COMPARE(Is_ge, >=)
JAXRING_PTX_COMPARE(Is_eq, ==)
JAXRING_PTX_COMPARE(Is_ne, !=)
#undef JAXRING_PTX_COMPARE

// The factor of a product of twice its width.
template <class T>
auto Wide(u64 bits) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<u32>(static_cast<T>(bits));
  } else {
    return static_cast<u64>(static_cast<T>(bits));
  }
}
inline u64 HighProduct(u64 a, u64 b) {
  __extension__ using Product = unsigned __int128;
  return static_cast<u64>(static_cast<Product>(a) * b >> 64);
}

// Shifts by the width or more leave nothing but signs.
template <class T>
T ShiftLeft(u64 bits, u32 by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(bits << by);
}
template <class T>
auto ShiftRight(u64 bits, u32 by) {
  constexpr u32 kMost = 8 * sizeof(T) - 1;
  const T value = static_cast<T>(bits);
  const bool all = by > kMost;
  return static_cast<std::make_unsigned_t<T>>(all ? (value < 0 ? -1 : 0) : value >> by);
}
// `length` low bits of `field` at bit `at` of `into`.
template <class T>
T Insert(u64 field, u64 into, u32 at, u32 length) {
  at &= 255;
  length &= 255;
  if (at >= 8 * sizeof(T)) return static_cast<T>(into);
  const u64 low = length >= 64 ? ~u64{0} : (u64{1} << length) - 1;
  return static_cast<T>((into & ~(low << at)) | (field & low) << at);
}
// Bytes of {b, a} by the selector's four digits; a digit's highest bit asks for the byte's sign instead.
inline u32 Permute(u32 a, u32 b, u32 selector) {
  const u64 both = u64{b} << 32 | a;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 digit = selector >> 4 * i & 15;
    u32 byte = static_cast<u32>(both >> 8 * (digit & 7)) & 255;
    if (digit & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}
// Any function of three bits, by its table of truth.
inline u32 Logic3(u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (u32 i = 0; i < 8; ++i) {
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}

// Defined out of line: rarely executed.
u32 FromHalf(u16 half);
u32 ToHalves(f32 low, f32 high);
u32 ToBfloat16s(f32 low, f32 high);

}  // namespace jaxring::cuda::ptx
