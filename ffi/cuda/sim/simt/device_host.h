// The functions of device.h on the host, for the shim's machine. Functions with a memory order in their name are
// atomics of the same order. The order must be a constant in the call of the compiler's builtin: GCC uses the strongest
// order for a variable, and ThreadSanitizer would miss that an order is too weak. (Without inlining, std::atomic_ref's
// functions pass a variable.)
#pragma once

#include <bit>
#include <cmath>

#include "cuda/sim/simt/simt.h"

#define JAXRING_DEVICE inline
#define JAXRING_UNROLL
#define JAXRING_ROLLED

namespace jaxring::cuda {

inline simt::Machine& ThisMachine() { return *simt::Machine::running; }

inline uint32_t ThreadIndex() { return simt::Machine::current->index; }
inline uint32_t Threads() { return ThisMachine().kernel().threads; }
inline uint32_t BlockIndex() { return simt::Machine::current->block->index; }
inline uint32_t Blocks() { return ThisMachine().kernel().blocks; }

inline bool SyncBlockOr(bool said) {
  if (!ThisMachine().faults().lost_barrier) return ThisMachine().Meet(true, said);
  ThisMachine().Chance();
  return said;
}
inline void SyncBlock() { SyncBlockOr(false); }
inline bool WarpAny(bool said) { return ThisMachine().Meet(false, said); }
inline void SyncWarp(uint32_t line = __builtin_LINE()) {
  const auto& lost = ThisMachine().faults().lost_warp_barrier;
  if (lost && lost(line)) return ThisMachine().Chance();
  ThisMachine().Meet(false, false);
}

inline uint64_t Clock() {
  simt::Unseen unseen;
  return ThisMachine().now();
}
inline void Pause(uint32_t) { ThisMachine().Yield(); }

inline Vec Load(const char* from) {
  ThisMachine().Chance();
  Vec v;
  std::memcpy(&v, std::assume_aligned<16>(from), sizeof v);
  return v;
}
template <class T>
T LoadElement(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
// The peer's process provides the order, which ThreadSanitizer does not see.
inline uint64_t LoadEntry(const uint64_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline Vec LoadSlot(const char* from) { return Load(from); }
inline void Store(char* to, const Vec& v) {
  ThisMachine().Chance();
  std::memcpy(std::assume_aligned<16>(to), &v, sizeof v);
}
template <class T>
void StoreElement(char* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
inline void StoreFar(char* to, const Vec& v) {
  ThisMachine().Chance();
  ThisMachine().Delay(std::assume_aligned<16>(to), &v, sizeof v, simt::Kind::kBytes);
}
template <class T>
void StoreFarElement(char* to, T value) {
  ThisMachine().Delay(to, &value, sizeof value, simt::Kind::kBytes);
}
inline void StoreEither(char* to, const Vec& v, bool far) { far ? StoreFar(to, v) : Store(to, v); }
template <class T>
void StoreEitherElement(char* to, T value, bool far) {
  far ? StoreFarElement<T>(to, value) : StoreElement<T>(to, value);
}

inline uint64_t LoadHalf(const char* from) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(from), __ATOMIC_RELAXED);
}
// Each half is accessed by itself, as a GPU may do: the second may be older or newer than the first.
inline Vec LoadLine(const char* from) {
  ThisMachine().Chance();
  Vec v;
  const uint64_t low = LoadHalf(from);
  ThisMachine().Chance();
  const uint64_t high = LoadHalf(from + 8);
  std::memcpy(&v.w[0], &low, 8);
  std::memcpy(&v.w[2], &high, 8);
  const simt::Faults& faults = ThisMachine().faults();
  if (faults.forged_line && faults.forged_line(reinterpret_cast<const uint32_t*>(from))) v.w[1] = v.w[3] = v.w[1] + 1;
  return v;
}
inline void StoreLine(char* to, const Vec& v) {
  ThisMachine().Chance();
  if (ThisMachine().faults().early_flag) {
    for (int word : {1, 3, 0, 2}) {
      std::memcpy(to + 4 * word, &v.w[word], 4);
      ThisMachine().Chance();
    }
    return;
  }
  ThisMachine().Delay(to, &v, sizeof v, simt::Kind::kLine);
}
// ThreadSanitizer does not know that the end of a kernel orders its accesses before what others learn of later ones, so
// for it the line does.
inline void StoreBegun(uint32_t* to, const Vec& v) {
  if (ThisMachine().delays()) return StoreLine(reinterpret_cast<char*>(to), v);
  ThisMachine().Chance();
  uint64_t halves[2];
  std::memcpy(halves, &v, sizeof halves);
  for (int i : {1, 0}) __atomic_store_n(reinterpret_cast<uint64_t*>(to) + i, halves[i], __ATOMIC_RELEASE);
}
inline Vec LoadBegun(const uint32_t* from) { return LoadLine(reinterpret_cast<const char*>(from)); }
inline void AcquireBegun(const uint32_t* line) {
  simt::Machine::current->bulk.fenced = false;
  if (!ThisMachine().faults().lost_acquire) __atomic_load_n(reinterpret_cast<const uint64_t*>(line), __ATOMIC_ACQUIRE);
}
// A line arrives as a whole: its flag, which the eighth thread has, is stored last and loaded first.
inline bool HoldsFlag() { return ThreadIndex() % 8 == 7; }
inline Vec LoadShare(const char* from) {
  Vec v;
  ThisMachine().Chance();
  if (HoldsFlag()) {
    const uint64_t flag = __atomic_load_n(reinterpret_cast<const uint64_t*>(from + 8), __ATOMIC_SEQ_CST);
    std::memcpy(&v.w[2], &flag, 8);
  }
  WarpAny(false);
  const uint64_t low = LoadHalf(from);
  std::memcpy(&v.w[0], &low, 8);
  if (!HoldsFlag()) {
    const uint64_t high = LoadHalf(from + 8);
    std::memcpy(&v.w[2], &high, 8);
  }
  return v;
}
inline void StoreShare(char* to, const Vec& v, bool active) {
  const bool flag_first = ThisMachine().faults().early_flag;
  for (bool flags : {flag_first, !flag_first}) {
    if (active && flags == HoldsFlag()) {
      uint64_t low, high;
      std::memcpy(&low, &v.w[0], 8);
      std::memcpy(&high, &v.w[2], 8);
      __atomic_store_n(reinterpret_cast<uint64_t*>(to), low, __ATOMIC_RELAXED);
      __atomic_store_n(reinterpret_cast<uint64_t*>(to + 8), high, __ATOMIC_SEQ_CST);
    }
    WarpAny(false);
    ThisMachine().Chance();
  }
}

// To be called before a word is accessed.
inline void BeforeWord(const void* word) {
  ThisMachine().Chance();
  ThisMachine().Settle(word);
}
inline uint64_t LoadAcquire(const uint64_t* from) {
  const simt::Faults& faults = ThisMachine().faults();
  simt::Machine::current->bulk.fenced = false;
  if (faults.skipped_wait && faults.skipped_wait(from)) return ~uint64_t{0} >> 1;
  BeforeWord(from);
  if (faults.lost_acquire) return __atomic_load_n(from, __ATOMIC_RELAXED);
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
template <class T>
T LoadRelaxed(const T* from) {
  if constexpr (sizeof(T) == 8) {
    const simt::Faults& faults = ThisMachine().faults();
    if (faults.skipped_wait && faults.skipped_wait(from)) return ~uint64_t{0} >> 1;
  }
  BeforeWord(from);
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}
// A late store needs no order of its own, since everything before it has been done.
template <int kOrder, class T, class V>
void StoreWord(T* to, V value) {
  const T word = static_cast<T>(value);
  if (!ThisMachine().delays()) {
    BeforeWord(to);
    __atomic_store_n(to, word, kOrder);
    return;
  }
  ThisMachine().Chance();
  ThisMachine().Delay(to, &word, sizeof word, simt::Kind::kWord);
}
template <class T, class V>
void StoreRelease(T* to, V value) {
  if (ThisMachine().faults().lost_release) return StoreWord<__ATOMIC_RELAXED>(to, value);
  ThisMachine().Drain();
  StoreWord<__ATOMIC_RELEASE>(to, value);
}
template <class T, class V>
void StoreRelaxed(T* to, V value) {
  StoreWord<__ATOMIC_RELAXED>(to, value);
}
// ThreadSanitizer does not support fences, and needs none here, since the words that this orders are atomic.
inline void FenceAll() {
  if (!ThisMachine().faults().lost_fence) ThisMachine().Drain();
}

inline constexpr bool kHasBulk = true;
inline constexpr uint32_t kBulkPiece = 32;  // small, so that small tests need many
template <class T>
T& BlockMemory() {
  return *reinterpret_cast<T*>(ThisMachine().BlockMemory(sizeof(T)));
}
inline simt::BulkQueue& Bulk() { return simt::Machine::current->block->bulk; }
inline simt::BulkThread& BulkSelf() { return simt::Machine::current->bulk; }
inline bool BulkLacks(simt::BulkFault what) { return ThisMachine().faults().bulk == what; }

inline void BulkInit(uint64_t* barrier) {
  *barrier = 0;
  Bulk().initialised = false;
}
inline void FenceBulkInit() { Bulk().initialised = !BulkLacks(simt::BulkFault::kNoInit); }
inline void BulkLoad(char* to, const char* from, uint32_t bytes, uint64_t* barrier) {
  ThisMachine().Chance();
  simt::BulkQueue::Expect(barrier, bytes);
  Bulk().Load(std::assume_aligned<16>(to), std::assume_aligned<16>(from), bytes, barrier, BulkSelf());
}
inline bool BulkArrived(uint64_t* barrier, uint32_t parity) {
  if (BulkLacks(simt::BulkFault::kNoArrival)) return true;
  ThisMachine().Chance();
  if ((*barrier & 1) == parity) Bulk().FinishLoad(barrier);
  return (*barrier & 1) != parity;
}
inline void BulkStore(char* to, const char* from, uint32_t bytes) {
  ThisMachine().Chance();
  Bulk().Store(std::assume_aligned<16>(to), std::assume_aligned<16>(from), bytes, BulkSelf());
}
inline void BulkCommit() { ++BulkSelf().group; }
inline void BulkAwaitRead() {
  ThisMachine().Chance();
  if (!BulkLacks(simt::BulkFault::kNoReuse)) Bulk().FinishStores(BulkSelf(), 1, false);
}
inline void BulkAwaitStored() {
  ThisMachine().Chance();
  if (BulkLacks(simt::BulkFault::kNoStored)) return;
  Bulk().FinishStores(BulkSelf(), 0, !BulkLacks(simt::BulkFault::kReadOnly));
}
// A block's late stores come before its bulk copies.
inline void FenceBulk() {
  if (BulkLacks(simt::BulkFault::kNoFence)) return;
  ThisMachine().Drain();
  BulkSelf().fenced = true;
}

inline void CountUp(uint64_t* word) {
  BeforeWord(word);
  // Where it publishes something a fence comes before it, which ThreadSanitizer does not support.
  __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
}
inline void Trap() { ThisMachine().Trap(); }

inline bool Claim(uint32_t* word) {
  BeforeWord(word);
  uint32_t free = 0;
  return __atomic_compare_exchange_n(word, &free, 1u, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

// By flipping the signs of signed bytes they compare as unsigned ones.
inline uint32_t LeastBytes(uint32_t a, uint32_t b, bool is_signed) {
  uint32_t word = 0;
  for (uint32_t byte = 0xff; byte != 0; byte <<= 8) {
    const uint32_t flip = is_signed ? byte & 0x80808080u : 0;
    word |= ((a ^ flip) & byte) < ((b ^ flip) & byte) ? a & byte : b & byte;
  }
  return word;
}
inline uint32_t GreatestBytes(uint32_t a, uint32_t b, bool is_signed) { return ~LeastBytes(~a, ~b, is_signed); }

template <class T>
T SquareRoot(T a) {
  return std::sqrt(a);
}

inline float AsFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t AsBits(float value) { return std::bit_cast<uint32_t>(value); }
inline double AsDouble(uint64_t bits) { return std::bit_cast<double>(bits); }
inline uint64_t AsBits(double value) { return std::bit_cast<uint64_t>(value); }

}  // namespace jaxring::cuda
