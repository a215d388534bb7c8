// Words and lines that other blocks, devices or the host poll, in translated PTX: the shim's own functions of the same
// order. One instruction serves LL's lines, of which each half arrives by itself, and LL128's, of which 8 threads
// access 128 bytes at once. It is the latter if the thread has met its warp just before; then the line is loaded at one
// time, and stored when all threads of the warp have stored.
#include "cuda/sim/ptx/access.h"

namespace jaxring::cuda::ptx {
namespace {

// A thread that loads the same word again polls, so others run. The source calls Pause in such loops, from which the
// compiler leaves only long sleeps.
template <class T>
const T* Polled(u64 at, u64 bytes = sizeof(T), bool line = false) {
  const void* from = GlobalAt(at, bytes, line);
  if (std::exchange(Self().polled, from) == from) {
    ThisMachine().PerformLines();
    ThisMachine().Yield();
  }
  return static_cast<const T*>(from);
}

std::array<u32, 4> Words(const Vec& v) { return {v.w[0], v.w[1], v.w[2], v.w[3]}; }
Vec VecOf(const std::array<u32, 4>& words) { return {{words[0], words[1], words[2], words[3]}}; }

simt::Meeting& Warp() { return *Self().block->warps[Self().index / 32]; }
// The part of a 128-byte line that belongs to this thread if it has just met its warp.
bool IsPart(const char* at) {
  simt::Unseen unseen;
  return Self().converged && reinterpret_cast<uintptr_t>(at) % 128 == 16 * (Self().index % 8);
}

// The image that the first of the line's threads loads for all.
simt::LineImage& ImageOf(const char* base) {
  simt::Unseen unseen;
  for (simt::LineImage& image : Warp().images) {
    if (image.base != base) continue;
    while (!image.whole) ThisMachine().Yield();
    return image;
  }
  simt::LineImage& image = Warp().images.emplace_back(simt::LineImage{base, {}, false});
  // The flag first, since the line may arrive meanwhile.
  for (int half : {15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}) {
    const u64 value = __atomic_load_n(reinterpret_cast<const u64*>(base + 8 * half), __ATOMIC_SEQ_CST);
    std::memcpy(&image.part[half / 2].w[half % 2 * 2], &value, 8);
    if (half == 15) ThisMachine().Chance();
  }
  image.whole = true;
  return image;
}

}  // namespace

u32 LoadRelaxed_u32(u64 at) { return cuda::LoadRelaxed(Polled<u32>(at)); }
u64 LoadRelaxed_u64(u64 at) { return cuda::LoadRelaxed(Polled<u64>(at)); }
u64 LoadAcquire_u64(u64 at) { return cuda::LoadAcquire(Polled<u64>(at)); }
void StoreRelaxed_u32(u64 at, u32 value) { cuda::StoreRelaxed(reinterpret_cast<u32*>(GlobalAt(at, 4)), value); }
void StoreRelaxed_u64(u64 at, u64 value) { cuda::StoreRelaxed(reinterpret_cast<u64*>(GlobalAt(at, 8)), value); }
void StoreRelease_u32(u64 at, u32 value) { cuda::StoreRelease(reinterpret_cast<u32*>(GlobalAt(at, 4)), value); }
void StoreRelease_u64(u64 at, u64 value) { cuda::StoreRelease(reinterpret_cast<u64*>(GlobalAt(at, 8)), value); }
void CountUp(u64 at) { cuda::CountUp(reinterpret_cast<u64*>(GlobalAt(at, 8))); }
void FenceAll() { cuda::FenceAll(); }

u32 CompareAndSwap(u64 at, u32 expected, u32 value) {
  u32* word = reinterpret_cast<u32*>(GlobalAt(at, 4));
  BeforeWord(word);
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

std::array<u32, 4> LoadLine(u64 at) {
  const bool part = IsPart(reinterpret_cast<const char*>(at));
  const char* from = Polled<char>(at, 16, true);
  if (!part) return Words(cuda::LoadLine(from));
  const u32 which = Self().index % 8;
  const simt::LineImage& image = ImageOf(from - 16 * which);
  simt::Unseen unseen;
  return Words(image.part[which]);
}

void StoreLine(u64 at, std::array<u32, 4> value) {
  const bool part = IsPart(reinterpret_cast<const char*>(at));
  char* to = GlobalAt(at, 16, true);
  if (!part) {
    // A line that begins a launch is stored by the same instruction as LL's.
    if (simt::kThreadSanitizer) return StoreBegun(reinterpret_cast<u32*>(to), VecOf(value));
    return cuda::StoreLine(to, VecOf(value));
  }
  simt::Unseen unseen;
  Warp().stores.push_back({to, VecOf(value), Self().index % 8 == 7});
}

}  // namespace jaxring::cuda::ptx
