// The machine interface of the kernels: the instructions that C++ cannot express, and nothing else. nvcc compiles them
// to PTX and intrinsics. Other compilers get the same names from the shim (cuda/sim/simt/simt.h), which simulates warps
// and blocks on the host.
//
// Words that another block, another device or the host writes or polls are accessed by functions whose names say the
// memory order; all other accesses are weak. A weak access is ordered by a barrier of the block together with an
// acquire or release of system scope by any of its threads (PTX memory model: causality order is transitive over both).
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__CUDACC__)
#include "cuda/sim/simt/simt.h"
#else

#define JAXRING_DEVICE __device__ __forceinline__
#define JAXRING_UNROLL _Pragma("unroll")
#define JAXRING_ROLLED _Pragma("unroll 1")

namespace jaxring::cuda {

struct alignas(16) Vec {
  uint32_t w[4];
};

JAXRING_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
JAXRING_DEVICE uint32_t Threads() { return blockDim.x; }
JAXRING_DEVICE uint32_t BlockIndex() { return blockIdx.x; }
JAXRING_DEVICE uint32_t Blocks() { return gridDim.x; }

JAXRING_DEVICE void SyncBlock() { __syncthreads(); }
// Whether any thread of the block passes true. Also a barrier of the block.
JAXRING_DEVICE bool SyncBlockOr(bool said) { return __syncthreads_or(said); }
JAXRING_DEVICE bool WarpAny(bool said) { return __any_sync(0xffffffffu, said); }
// A barrier of the warp's threads, which also orders their accesses.
JAXRING_DEVICE void SyncWarp() { __syncwarp(); }

// Nanoseconds, coarse, the same for all blocks of a device.
JAXRING_DEVICE uint64_t Clock() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
// To be called in every round of a polling loop. Short waits spin, since sleeping would take longer.
JAXRING_DEVICE void Pause(uint32_t turn) {
  if (turn > 4096) __nanosleep(100);
}

// A vector as operands of PTX.
#define JAXRING_TO(v) "=r"((v).w[0]), "=r"((v).w[1]), "=r"((v).w[2]), "=r"((v).w[3])
#define JAXRING_FROM(v) "r"((v).w[0]), "r"((v).w[1]), "r"((v).w[2]), "r"((v).w[3])

// Data that a kernel reads once, and that nothing else writes meanwhile or whose writes an acquire has ordered.
JAXRING_DEVICE Vec Load(const char* from) {
  Vec v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : JAXRING_TO(v) : "l"(from) : "memory");
  return v;
}
template <class T>
JAXRING_DEVICE T LoadElement(const char* from) {
  return *reinterpret_cast<const T*>(from);
}
// An entry of a table that the host may have written since this launch began. An acquire must have ordered the write.
JAXRING_DEVICE uint64_t LoadEntry(const uint64_t* from) { return *from; }
// Loads a peer's data from a slot. Bypasses the L1 cache, which is not coherent with such writes.
JAXRING_DEVICE Vec LoadSlot(const char* from) {
  Vec v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : JAXRING_TO(v) : "l"(from) : "memory");
  return v;
}
JAXRING_DEVICE void Store(char* to, const Vec& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), JAXRING_FROM(v) : "memory");
}
template <class T>
JAXRING_DEVICE void StoreElement(char* to, T value) {
  *reinterpret_cast<T*>(to) = value;
}
// Stores into memory that a peer reads after a release: a slot, or a memory peer's output.
JAXRING_DEVICE void StoreFar(char* to, const Vec& v) { Store(to, v); }
template <class T>
JAXRING_DEVICE void StoreFarElement(char* to, T value) {
  StoreElement<T>(to, value);
}
// One or the other, as is known at run time. Both are the same instruction, so nothing is selected here.
JAXRING_DEVICE void StoreEither(char* to, const Vec& v, bool) { Store(to, v); }
template <class T>
JAXRING_DEVICE void StoreEitherElement(char* to, T value, bool) {
  StoreElement<T>(to, value);
}

// A line of LL: {data, flag, data, flag}. Each half of it arrives as a whole.
JAXRING_DEVICE Vec LoadLine(const char* from) { return LoadSlot(from); }
JAXRING_DEVICE void StoreLine(char* to, const Vec& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), JAXRING_FROM(v) : "memory");
}
// A line that says that all earlier work of the stream is done. The end of a kernel has made its stores visible to all
// devices, so no fence is passed here; a launch that stores what members read before it has one of its own (staging.h).
JAXRING_DEVICE void StoreBegun(uint32_t* to, const Vec& v) { StoreLine(reinterpret_cast<char*>(to), v); }
JAXRING_DEVICE Vec LoadBegun(const uint32_t* from) { return LoadLine(reinterpret_cast<const char*>(from)); }
// To be called when the line has been seen: what is loaded later is not older than the work that it speaks of.
JAXRING_DEVICE void AcquireBegun(const uint32_t* line) {
  asm volatile("{.reg .u64 word; ld.acquire.sys.global.u64 word, [%0];}" ::"l"(line) : "memory");
}
// A thread's share of a 128-byte line that 8 neighbouring threads access at once; the second half of the eighth share
// is the flag. All threads of the warp must call it together, so that a line is loaded and stored as a whole.
JAXRING_DEVICE Vec LoadShare(const char* from) {
  __syncwarp();
  return LoadSlot(from);
}
JAXRING_DEVICE void StoreShare(char* to, const Vec& v, bool active) {
  __syncwarp();
  if (active) StoreLine(to, v);
}

// Words that are polled: `T` is uint32_t or uint64_t.
#define JAXRING_WORD_LOAD(name, order, T, type, constraint)                                                \
  JAXRING_DEVICE T name(const T* from) {                                                                   \
    T value;                                                                                               \
    asm volatile("ld." order ".sys.global." type " %0, [%1];" : constraint(value) : "l"(from) : "memory"); \
    return value;                                                                                          \
  }
#define JAXRING_WORD_STORE(name, order, T, type, constraint)                                            \
  JAXRING_DEVICE void name(T* to, T value) {                                                            \
    asm volatile("st." order ".sys.global." type " [%0], %1;" ::"l"(to), constraint(value) : "memory"); \
  }
JAXRING_WORD_LOAD(LoadAcquire, "acquire", uint64_t, "u64", "=l")
JAXRING_WORD_LOAD(LoadRelaxed, "relaxed", uint32_t, "u32", "=r")
JAXRING_WORD_LOAD(LoadRelaxed, "relaxed", uint64_t, "u64", "=l")
JAXRING_WORD_STORE(StoreRelease, "release", uint32_t, "u32", "r")
JAXRING_WORD_STORE(StoreRelease, "release", uint64_t, "u64", "l")
JAXRING_WORD_STORE(StoreRelaxed, "relaxed", uint32_t, "u32", "r")
JAXRING_WORD_STORE(StoreRelaxed, "relaxed", uint64_t, "u64", "l")
#undef JAXRING_WORD_LOAD
#undef JAXRING_WORD_STORE

// Orders a store before a load of another word: of two threads that each store, call this and load, at least one sees
// the other's store. No weaker fence guarantees that.
JAXRING_DEVICE void FenceAll() { asm volatile("fence.sc.sys;" ::: "memory"); }

// Bulk copies between global and shared memory, which the hardware performs asynchronously from compute capability 9.0
// on. Addresses and sizes are multiples of 16. They belong to the async proxy: bulk.h says what orders them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulk = true;
#else
inline constexpr bool kHasBulk = false;
#endif
#if !defined(JAXRING_BULK_PIECE)
#define JAXRING_BULK_PIECE 8192  // tests of the compiler's output make it small, as the shim does
#endif
inline constexpr uint32_t kBulkPiece = JAXRING_BULK_PIECE;  // bytes of one copy at most

// The dynamic shared memory, of the size that the launch requested.
template <class T>
JAXRING_DEVICE T& BlockMemory() {
  extern __shared__ __align__(128) char block_memory[];
  return *reinterpret_cast<T*>(block_memory);
}
JAXRING_DEVICE uint32_t InBlock(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// The phase of `barrier` ends when the load that was begun on it has arrived.
JAXRING_DEVICE void BulkInit(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(InBlock(barrier)) : "memory");
}
JAXRING_DEVICE void BulkLoad(char* to, const char* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(InBlock(to)),
      "l"(from), "r"(bytes), "r"(InBlock(barrier))
      : "memory");
}
// Whether the phase of this parity has ended. Waits for a short time.
JAXRING_DEVICE bool BulkArrived(uint64_t* barrier, uint32_t parity) {
  uint32_t arrived;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(arrived)
               : "r"(InBlock(barrier)), "r"(parity)
               : "memory");
  return arrived != 0;
}
// Stores are counted in groups: those of a thread since its last commit.
JAXRING_DEVICE void BulkStore(char* to, const char* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(InBlock(from)), "r"(bytes)
               : "memory");
}
JAXRING_DEVICE void BulkCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all groups but the newest have read their sources.
JAXRING_DEVICE void BulkAwaitRead() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
// Waits until all groups have stored their bytes and this thread sees them.
JAXRING_DEVICE void BulkAwaitStored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Makes the barriers that this thread has initialised known to the hardware that copies.
JAXRING_DEVICE void FenceBulkInit() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
// Orders ordinary accesses to global memory and bulk copies of it.
JAXRING_DEVICE void FenceBulk() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Counts in own memory, at once with other blocks. It orders nothing.
JAXRING_DEVICE void CountUp(uint64_t* word) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(word) : "memory");
}
// Ends the kernel, and the context with it, by an error.
JAXRING_DEVICE void Trap() { __trap(); }

// True for the first thread that calls it.
JAXRING_DEVICE bool Claim(uint32_t* word) { return atomicCAS_system(word, 0u, 1u) == 0; }

JAXRING_DEVICE float AsFloat(uint32_t bits) { return __uint_as_float(bits); }
JAXRING_DEVICE uint32_t AsBits(float value) { return __float_as_uint(value); }
JAXRING_DEVICE double AsDouble(uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }
JAXRING_DEVICE uint64_t AsBits(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }

// Rounded to nearest even.
template <class T>
JAXRING_DEVICE T SquareRoot(T a) {
  if constexpr (sizeof(T) == 4) {
    return __fsqrt_rn(a);
  } else {
    return __dsqrt_rn(a);
  }
}

// The least and greatest of each byte of a word.
JAXRING_DEVICE uint32_t LeastBytes(uint32_t a, uint32_t b, bool is_signed) {
  return is_signed ? __vmins4(a, b) : __vminu4(a, b);
}
JAXRING_DEVICE uint32_t GreatestBytes(uint32_t a, uint32_t b, bool is_signed) {
  return is_signed ? __vmaxs4(a, b) : __vmaxu4(a, b);
}

// Both halves of a word, to and from float32; rounded to nearest even.
JAXRING_DEVICE void UnpackHalves(uint32_t word, float* low, float* high) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(*low), "=f"(*high)
      : "r"(word));
}
JAXRING_DEVICE uint32_t PackHalves(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
JAXRING_DEVICE uint32_t PackBfloat16s(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

}  // namespace jaxring::cuda

#endif
