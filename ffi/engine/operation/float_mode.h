// The processor's floating-point mode. XLA's threads flush subnormals to zero and jaxring's do not, but results must
// not depend on the thread that computed them. So every reduction runs in the IEEE default mode, and XLA's code on a
// thread of jaxring runs in the mode of the thread that launched the operation. A switch costs some 20 ns each way, so
// code that only polls or copies does not switch.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace jaxring {

using FloatMode = uint64_t;

#if defined(__x86_64__)
inline constexpr FloatMode kIeeeFloatMode = 0x1F80;  // round to nearest, subnormals kept, exceptions masked
inline FloatMode ReadFloatMode() { return _mm_getcsr(); }
inline void WriteFloatMode(FloatMode mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
inline constexpr FloatMode kIeeeFloatMode = 0;
inline FloatMode ReadFloatMode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void WriteFloatMode(FloatMode mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
inline constexpr FloatMode kIeeeFloatMode = 0;
inline FloatMode ReadFloatMode() { return kIeeeFloatMode; }
inline void WriteFloatMode(FloatMode) {}
#endif

// Sets the mode of the current thread for its own lifetime.
class ScopedFloatMode {
 public:
  explicit ScopedFloatMode(FloatMode mode) : saved_(ReadFloatMode()), differs_(saved_ != mode) {
    if (differs_) WriteFloatMode(mode);
  }
  ~ScopedFloatMode() {
    if (differs_) WriteFloatMode(saved_);
  }
  ScopedFloatMode(const ScopedFloatMode&) = delete;
  ScopedFloatMode& operator=(const ScopedFloatMode&) = delete;

 private:
  const FloatMode saved_;
  const bool differs_;
};

}  // namespace jaxring
