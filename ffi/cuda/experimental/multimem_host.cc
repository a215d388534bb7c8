#include "cuda/experimental/multimem_host.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace jaxring::cuda::simt {
namespace {

struct Range {
  char* all;
  uint64_t bytes;
  std::vector<char*> replicas;
};
// No lock: it would order the kernels that read this, and hide missing synchronisation from ThreadSanitizer.
std::array<std::atomic<Range*>, 256> ranges;

}  // namespace

char* NewMulticast(std::vector<char*> replicas, uint64_t bytes) {
  void* all = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  auto* range = new Range{static_cast<char*>(all), bytes, std::move(replicas)};
  for (auto& place : ranges) {
    Range* free = nullptr;
    if (place.compare_exchange_strong(free, range)) return range->all;
  }
  delete range;
  munmap(all, bytes);
  throw std::bad_alloc();
}

void FreeMulticast(char* all) {
  for (auto& place : ranges) {
    Range* range = place.load();
    if (range == nullptr || range->all != all) continue;
    place.store(nullptr);
    munmap(all, range->bytes);
    delete range;
    return;
  }
}

Replicas ReplicasOf(const char* all) {
  Unseen unseen;
  for (const auto& place : ranges) {
    const Range* range = place.load(std::memory_order_relaxed);
    if (range != nullptr && all >= range->all && all < range->all + range->bytes) {
      return {&range->replicas, static_cast<uint64_t>(all - range->all)};
    }
  }
  std::fputs("a multimem access by what is no multicast address\n", stderr);
  std::abort();
}

bool IsReplica(const char* at) {
  Unseen unseen;
  for (const auto& place : ranges) {
    const Range* range = place.load(std::memory_order_relaxed);
    if (range == nullptr) continue;
    for (const char* base : range->replicas) {
      if (at >= base && at < base + range->bytes) return true;
    }
  }
  return false;
}

void MustReduce(const Arithmetic& how) {
  switch (how.code) {
    case Code::kSumF32:
      if (how.dtype == DType::kF8E4M3FN || how.dtype == DType::kF8E5M2) break;
      return;
    case Code::kSumF64:
    case Code::kSum32:
    case Code::kSum64:
    case Code::kMinS32:
    case Code::kMinU32:
    case Code::kMinS64:
    case Code::kMinU64:
    case Code::kMaxS32:
    case Code::kMaxU32:
    case Code::kMaxS64:
    case Code::kMaxU64:
    case Code::kAnd:
    case Code::kOr:
    case Code::kXor:
      return;
    default:
      break;
  }
  std::fputs("a multimem reduction that there is no instruction for\n", stderr);
  std::abort();
}

}  // namespace jaxring::cuda::simt
