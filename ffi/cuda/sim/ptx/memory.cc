// Threads, shared memory and weak accesses of translated PTX.
//
// A weak store does not say whether others read it, so all of them are performed late, as the shim's StoreFar is. A
// load by the same block sees them: barriers order its threads.
#include "cuda/sim/ptx/memory.h"

#include "cuda/device/device_formats.h"
#include "cuda/experimental/multimem_host.h"
#include "cuda/sim/ptx/access.h"

namespace jaxring::cuda::ptx {

void Refuse(const char* what, u64 at) {
  std::fprintf(stderr, "translated PTX: %s, at 0x%llx\n", what, static_cast<unsigned long long>(at));
  std::abort();
}

u64 TakeParam(const Param& param, u64 bytes) {
  if (param.bytes != bytes) Refuse("a parameter of another size", bytes);
  return reinterpret_cast<u64>(param.at);
}

const int broken = [] {
  const char* number = std::getenv("PTX_MUTATION");
  return number == nullptr ? -1 : std::atoi(number);
}();

void Enter(const char* kernel, bool& played, u64 shared_bytes) {
  simt::Unseen unseen;
  const char* path = std::getenv("PTX_PLAYED");
  if (!std::exchange(played, true) && path != nullptr) {
    std::FILE* file = std::fopen(path, "a");
    if (file == nullptr) Refuse("PTX_PLAYED names no file that can be written", 0);
    std::fprintf(file, "%s\n", kernel);
    std::fclose(file);
  }
  // A fiber has played other kernels before.
  Self().converged = Self().barriers_released = false;
  Self().polled = nullptr;
  Self().shared = ThisMachine().BlockMemory(shared_bytes);
  Self().shared_bytes = shared_bytes;
}
u32 ThreadX() { return ThreadIndex(); }
u32 ThreadsX() { return Threads(); }
u32 BlockX() { return BlockIndex(); }
u32 BlocksX() { return Blocks(); }
u64 GlobalTimer() { return Clock(); }
void Sleep() { ThisMachine().Yield(); }
void Trap() { cuda::Trap(); }

void SyncBlock() { cuda::SyncBlock(); }
bool SyncBlockOr(bool said) { return cuda::SyncBlockOr(said); }
void SyncWarp() {
  cuda::SyncWarp();
  Self().converged = true;
}
bool VoteAny(bool said, u32 members) {
  if (members != ~u32{0}) Refuse("a vote of a part of a warp", members);
  return WarpAny(said);
}

template <class T, int kN>
std::array<T, kN> LoadShared(u64 at) {
  std::array<T, kN> value;
  std::memcpy(value.data(), SharedAt(at, sizeof value), sizeof value);
  return value;
}
template <class T, int kN>
void StoreShared(u64 at, std::array<T, kN> value) {
  std::memcpy(SharedAt(at, sizeof value), value.data(), sizeof value);
}

template <class T, int kN>
std::array<T, kN> LoadWeak(u64 at) {
  std::array<T, kN> value;
  const char* from = GlobalAt(at, sizeof value);
  std::memcpy(value.data(), from, sizeof value);
  return value;
}
template <class T, int kN>
void StoreWeak(u64 at, std::array<T, kN> value) {
  char* to = GlobalAt(at, sizeof value);
  const simt::Kind kind = simt::IsReplica(to) ? simt::Kind::kAlias : simt::Kind::kBytes;
  // The elements of a vector are stores of their own, in no order.
  for (int i = 0; i < kN; ++i) ThisMachine().Delay(to + i * sizeof(T), &value[i], sizeof(T), kind);
}

#define JAXRING_PTX_ACCESS(T, kN)                           \
  template std::array<T, kN> LoadShared<T, kN>(u64);        \
  template void StoreShared<T, kN>(u64, std::array<T, kN>); \
  template std::array<T, kN> LoadWeak<T, kN>(u64);          \
  template void StoreWeak<T, kN>(u64, std::array<T, kN>);
JAXRING_PTX_ACCESS(u8, 1)
JAXRING_PTX_ACCESS(u16, 1)
JAXRING_PTX_ACCESS(u32, 1)
JAXRING_PTX_ACCESS(u64, 1)
JAXRING_PTX_ACCESS(u8, 2)
JAXRING_PTX_ACCESS(u16, 2)
JAXRING_PTX_ACCESS(u32, 2)
JAXRING_PTX_ACCESS(u64, 2)
JAXRING_PTX_ACCESS(u8, 4)
JAXRING_PTX_ACCESS(u16, 4)
JAXRING_PTX_ACCESS(u32, 4)
#undef JAXRING_PTX_ACCESS

u32 FromHalf(u16 half) { return AsBits(Float16::Unpack(half)); }
// The hardware's NaN in these formats is positive, with all bits of the mantissa.
u32 ToHalves(f32 low, f32 high) {
  const auto pack = [](float value) { return std::isnan(value) ? 0x7fffu : Float16::Pack(value); };
  return pack(low.value) | pack(high.value) << 16;
}
u32 ToBfloat16s(f32 low, f32 high) {
  const auto pack = [](float value) { return std::isnan(value) ? 0x7fffu : PackBfloat16(value); };
  return pack(low.value) | pack(high.value) << 16;
}

}  // namespace jaxring::cuda::ptx
