// The processor's floating-point mode while values are made. XLA's threads flush subnormals to zero and ours do not;
// results must not depend on the thread that made them, so every reduction runs in the IEEE default mode. To switch
// costs some 20 ns twice: nothing that only looks or copies does so.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace jaxring {

class IeeeFloatMode {
 public:
#if defined(__x86_64__)
  IeeeFloatMode() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~IeeeFloatMode() {
    if (saved_ != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1F80;  // round to nearest, subnormals kept, exceptions masked
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeFloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~IeeeFloatMode() {
    if (saved_ != 0) asm volatile("msr fpcr, %0" ::"r"(saved_));
  }

 private:
  uint64_t saved_;
#else
  IeeeFloatMode() {}
  ~IeeeFloatMode() {}
#endif
  IeeeFloatMode(const IeeeFloatMode&) = delete;
  IeeeFloatMode& operator=(const IeeeFloatMode&) = delete;
};

}  // namespace jaxring
