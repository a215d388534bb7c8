// Selects the instruction set whose kernels are used.
#include <atomic>
#include <cstring>

#include "reduce/isa.h"

// JAXRING_BASELINE_ONLY: a build without the kernels of particular instruction sets.
#if defined(__x86_64__) && !defined(JAXRING_BASELINE_ONLY)
#define JAXRING_X86_KERNELS
#include <cpuid.h>
#endif

namespace jaxring {
namespace {

struct Choice {
  const char* name;
  IsaTables tables;
  bool supported;
};

#if defined(JAXRING_X86_KERNELS)
bool HasF16C() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16C(); }

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

// Best first; the last is always supported.
const Choice* Choices() {
  static const Choice choices[] = {
#if defined(JAXRING_X86_KERNELS)
      {"avx512", Avx512Kernels(), HasAvx512()},
      {"avx2", Avx2Kernels(), HasAvx2()},
#endif
      {"baseline", BaselineKernels(), true},
  };
  return choices;
}

const Choice* Best() {
  const Choice* choice = Choices();
  while (!choice->supported) ++choice;
  return choice;
}

std::atomic<const Choice*>& Chosen() {
  static std::atomic<const Choice*> chosen = Best();
  return chosen;
}

}  // namespace

const Kernels* FindKernels(DType dtype, ReduceOp op) {
  const auto row = static_cast<size_t>(dtype), column = static_cast<size_t>(op);
  if (row >= kDTypeCount || column >= kReduceOpCount) return nullptr;
  const Kernels& kernels = Chosen().load(std::memory_order_relaxed)->tables.kernels[row][column];
  return kernels.element_bytes ? &kernels : nullptr;
}

std::span<const Epilogue> Epilogues() { return Chosen().load(std::memory_order_relaxed)->tables.epilogues; }

const char* InstructionSet() { return Chosen().load(std::memory_order_relaxed)->name; }

bool ForceInstructionSet(const char* name) {
  const Choice* choice = Choices();
  for (;; ++choice) {
    if (std::strcmp(choice->name, name) == 0) break;
    if (std::strcmp(choice->name, "baseline") == 0) return false;
  }
  if (choice->supported) Chosen().store(choice, std::memory_order_relaxed);
  return choice->supported;
}

}  // namespace jaxring
