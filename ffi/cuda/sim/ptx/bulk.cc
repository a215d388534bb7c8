// Bulk copies and accesses to multicast memory in translated PTX, by the shim's functions for them.
#include "cuda/experimental/multimem_host.h"
#include "cuda/sim/ptx/access.h"

namespace jaxring::cuda::ptx {
namespace {

u64* BarrierAt(u64 at) { return reinterpret_cast<u64*>(SharedAt(at, 8)); }

// Both ends and the size are multiples of 16.
void CheckBulk(u64 to, u64 from, u32 bytes) {
  if ((to | from | bytes) % 16 != 0 || bytes == 0) Refuse("a bulk copy of no whole packs", to);
}
char* StageAt(u64 at, u32 bytes) {
  SharedAt(at + bytes - 16, 16);
  return SharedAt(at, 16);
}

}  // namespace

void BarrierInit(u64 barrier) {
  BulkInit(BarrierAt(barrier));
  Self().barriers_released = false;
}
// The shim's fence is both of these, one after the other.
void FenceBarrierInit() { Self().barriers_released = true; }
void FenceProxyAsyncShared() {
  if (Self().barriers_released) FenceBulkInit();
}
void BarrierExpect(u64 barrier, u32 bytes) { simt::BulkQueue::Expect(BarrierAt(barrier), bytes); }
bool BarrierTryWait(u64 barrier, u32 parity) {
  const bool arrived = BulkArrived(BarrierAt(barrier), parity);
  if (!arrived) ThisMachine().Yield();
  return arrived;
}
void BulkToShared(u64 to, u64 from, u32 bytes, u64 barrier) {
  CheckBulk(to, from, bytes);
  ThisMachine().Chance();
  Bulk().Load(StageAt(to, bytes), reinterpret_cast<const char*>(from), bytes, BarrierAt(barrier), BulkSelf());
}
void BulkToGlobal(u64 to, u64 from, u32 bytes) {
  CheckBulk(to, from, bytes);
  BulkStore(reinterpret_cast<char*>(to), StageAt(from, bytes), bytes);
}
void BulkCommit() { cuda::BulkCommit(); }
void BulkWaitRead() { BulkAwaitRead(); }
void BulkWait() { BulkAwaitStored(); }
void FenceProxyAsync() { FenceBulk(); }

void FenceProxyAlias() { FenceAliases(); }
void MultimemStore(u64 at, std::array<u32, 4> value) {
  if (at % 16 != 0) Refuse("a misaligned access to multicast memory", at);
  StoreAll(reinterpret_cast<char*>(at), {{value[0], value[1], value[2], value[3]}});
}

namespace {

std::array<u32, 4> Sum(DType dtype, u64 at) {
  if (at % 16 != 0) Refuse("a misaligned access to multicast memory", at);
  const Arithmetic how{dtype, Code::kSumF32, 0};
  const char* from = reinterpret_cast<const char*>(at);
  const Vec v = dtype == DType::kF32 ? Reduced<1>(how, from) : Reduced<2>(how, from);
  return {v.w[0], v.w[1], v.w[2], v.w[3]};
}

}  // namespace

std::array<u32, 4> MultimemAddF32(u64 at) { return Sum(DType::kF32, at); }
std::array<u32, 4> MultimemAddF16(u64 at) { return Sum(DType::kF16, at); }
std::array<u32, 4> MultimemAddBF16(u64 at) { return Sum(DType::kBF16, at); }

template <Multimem kHow, class T>
u64 MultimemReduce(u64 at) {
  using Value = std::conditional_t<std::is_same_v<T, f64>, double, T>;
  if (at % sizeof(Value) != 0) Refuse("a misaligned access to multicast memory", at);
  const simt::Replicas replicas = simt::ReplicasOf(reinterpret_cast<const char*>(at));
  Value sum{};
  bool first = true;
  for (const char* base : *replicas.bases) {
    ThisMachine().Chance();
    Value next;
    std::memcpy(&next, base + replicas.offset, sizeof next);
    if (std::exchange(first, false)) {
      sum = next;
    } else if constexpr (kHow == Multimem::add) {
      sum = sum + next;
    } else if constexpr (kHow == Multimem::min) {
      sum = next < sum ? next : sum;
    } else if constexpr (kHow == Multimem::max) {
      sum = next > sum ? next : sum;
    } else if constexpr (kHow == Multimem::and_) {
      sum = sum & next;
    } else if constexpr (kHow == Multimem::or_) {
      sum = sum | next;
    } else {
      sum = sum ^ next;
    }
  }
  if constexpr (std::is_same_v<T, f64>)
    return std::bit_cast<u64>(sum);
  else
    return static_cast<u64>(sum);
}

#define JAXRING_PTX_REDUCE(how)                         \
  template u64 MultimemReduce<Multimem::how, u32>(u64); \
  template u64 MultimemReduce<Multimem::how, s32>(u64); \
  template u64 MultimemReduce<Multimem::how, u64>(u64); \
  template u64 MultimemReduce<Multimem::how, s64>(u64);
JAXRING_PTX_REDUCE(add)
JAXRING_PTX_REDUCE(min)
JAXRING_PTX_REDUCE(max)
#undef JAXRING_PTX_REDUCE
template u64 MultimemReduce<Multimem::add, f64>(u64);
template u64 MultimemReduce<Multimem::and_, u64>(u64);
template u64 MultimemReduce<Multimem::or_, u64>(u64);
template u64 MultimemReduce<Multimem::xor_, u64>(u64);

}  // namespace jaxring::cuda::ptx
