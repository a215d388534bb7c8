// The quantizers for x86-64 with AVX2: compiled with the options of reduce/kernels_avx2.cc.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mfma -mf16c"
#endif
#define JAXRING_ISA avx2
#define JAXRING_VECTOR_BYTES 32
#include "quantize/block_sums.h"

namespace jaxring {

const QuantizerTable& Avx2Quantizers() { return avx2::kQuantizers; }

}  // namespace jaxring
#endif
