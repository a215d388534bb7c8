// The quantizers for x86-64 with AVX-512: compiled with the options of reduce/kernels_avx512.cc.
#if defined(__x86_64__)
#if !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__) || !defined(__F16C__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mf16c"
#endif
#define JAXRING_ISA avx512
#define JAXRING_VECTOR_BYTES 64
#include "quantize/block_sums.h"

namespace jaxring {

const QuantizerTable& Avx512Quantizers() { return avx512::kQuantizers; }

}  // namespace jaxring
#endif
