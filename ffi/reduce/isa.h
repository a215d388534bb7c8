// The tables of functions, one for each instruction set that this build has.
#pragma once

#include "reduce/kernels.h"

namespace jaxring {

// Indexed by dtype and operation; element_bytes is 0 where the pair has no functions.
using KernelTable = Kernels[kDTypeCount][kReduceOpCount];

const KernelTable& BaselineKernels();
#if defined(__x86_64__)
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
#endif

}  // namespace jaxring
