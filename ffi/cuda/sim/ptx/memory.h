// What translated PTX does beyond its registers (tools/ptx/forms.py): memory, barriers, special registers. Translated
// kernels call these functions for every access to memory, so sanitizers see all of them here and the kernels' own
// objects serve builds with and without sanitizers. Addresses in shared memory are offsets in the block's; others are
// the host's.
#pragma once

#include <array>
#include <cstring>

#include "cuda/sim/ptx/registers.h"

namespace jaxring::cuda::ptx {

struct Param {
  const char* at;
  u64 bytes;
};
// Its address. Ends the process if the kernel was compiled for another size.
u64 TakeParam(const Param& param, u64 bytes);
template <class T>
T LoadParam(u64 at) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(at), sizeof value);
  return value;
}

// Called first by each thread: the shared memory that the block has. A kernel that is played for the first time adds
// its name to the file that the variable PTX_PLAYED names.
void Enter(const char* kernel, bool& played, u64 shared_bytes);
// The number of the mutation that kernels have (tools/ptx/mutations.py), by the variable PTX_MUTATION; -1: none.
extern const int broken;
u32 ThreadX();
u32 ThreadsX();
u32 BlockX();
u32 BlocksX();
u64 GlobalTimer();
void Sleep();
void Trap();
void SyncBlock();
bool SyncBlockOr(bool said);
void SyncWarp();
bool VoteAny(bool said, u32 members);

template <class T, int kN>
std::array<T, kN> LoadShared(u64 at);
template <class T, int kN>
void StoreShared(u64 at, std::array<T, kN> value);
template <class T, int kN>
std::array<T, kN> LoadWeak(u64 at);
template <class T, int kN>
void StoreWeak(u64 at, std::array<T, kN> value);

u32 LoadRelaxed_u32(u64 at);
u64 LoadRelaxed_u64(u64 at);
u64 LoadAcquire_u64(u64 at);
void StoreRelaxed_u32(u64 at, u32 value);
void StoreRelaxed_u64(u64 at, u64 value);
void StoreRelease_u32(u64 at, u32 value);
void StoreRelease_u64(u64 at, u64 value);
u32 CompareAndSwap(u64 at, u32 expected, u32 value);
std::array<u32, 4> LoadLine(u64 at);
void StoreLine(u64 at, std::array<u32, 4> value);
void CountUp(u64 at);
void FenceAll();

void BarrierInit(u64 barrier);
void FenceBarrierInit();
void FenceProxyAsyncShared();
void BarrierExpect(u64 barrier, u32 bytes);
bool BarrierTryWait(u64 barrier, u32 parity);
void BulkToShared(u64 to, u64 from, u32 bytes, u64 barrier);
void BulkToGlobal(u64 to, u64 from, u32 bytes);
void BulkCommit();
void BulkWaitRead();
void BulkWait();
void FenceProxyAsync();

void FenceProxyAlias();
void MultimemStore(u64 at, std::array<u32, 4> value);
enum class Multimem { add, min, max, and_, or_, xor_ };
template <Multimem kHow, class T>
u64 MultimemReduce(u64 at);
std::array<u32, 4> MultimemAddF32(u64 at);
std::array<u32, 4> MultimemAddF16(u64 at);
std::array<u32, 4> MultimemAddBF16(u64 at);

}  // namespace jaxring::cuda::ptx
