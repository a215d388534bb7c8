// The tables of functions, one for each instruction set that this build has.
#pragma once

#include <span>

#include "reduce/kernels.h"

namespace jaxring {

// Indexed by dtype and operation; element_bytes is 0 where the pair has no functions.
using KernelTable = Kernels[kDTypeCount][kReduceOpCount];

// What an instruction set has.
struct IsaTables {
  const KernelTable& kernels;
  std::span<const Epilogue> epilogues;
};

IsaTables BaselineKernels();
#if defined(__x86_64__)
IsaTables Avx2Kernels();
IsaTables Avx512Kernels();
#endif

}  // namespace jaxring
