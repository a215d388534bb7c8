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

// They are called on all CPUs, before it is known which instructions these have, so they copy nothing: a copy could be
// made by such instructions.
const IsaTables& BaselineKernels();
#if defined(__x86_64__)
const IsaTables& Avx2Kernels();
const IsaTables& Avx512Kernels();
#endif

}  // namespace jaxring
