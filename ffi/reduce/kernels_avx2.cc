// The kernels for x86-64 with AVX2, FMA and F16C: compiled with -mavx2 -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mfma -mf16c"
#endif
#define JAXRING_ISA avx2
#define JAXRING_VECTOR_BYTES 32
#include "reduce/table.h"

namespace jaxring {

namespace {
constexpr IsaTables kTables{avx2::kTable, avx2::kEpilogues};
}

const IsaTables& Avx2Kernels() { return kTables; }

}  // namespace jaxring
#endif
