// A SIMT machine on the host, on which the kernels' own source runs in tests. It has streams of blocks of threads,
// barriers, votes and a clock. No two threads run at once. The order is round robin or, with a seed, adversarial:
// - any thread may be preempted at any access to memory, and whole blocks are delayed for a while;
// - bulk copies are performed late and in any order (cuda/sim/simt/bulk_host.h);
// - stores that others read (StoreFar, StoreLine) are performed late and in any order, but before their block's next
//   release; stores of words, including releases, are performed late, but before their block's next fence; stores that
//   others read by another alias are performed before the release after their block's next fence between aliases.
// Time is counted in switches, so long waits take no real time.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/sim/simt/bulk_host.h"
#include "cuda/sim/simt/fibers.h"

namespace jaxring::cuda {

struct alignas(16) Vec {
  uint32_t w[4];
};

namespace simt {

// Faults of a machine or a kernel, for mutation tests.
struct Faults {
  bool lost_release = false;                          // a release orders nothing
  bool lost_acquire = false;                          // an acquire orders nothing: for ThreadSanitizer
  bool lost_fence = false;                            // a fence orders nothing
  bool lost_alias_fence = false;                      // a fence between aliases of one memory orders nothing
  bool early_flag = false;                            // a line's flags arrive before its data
  bool lost_barrier = false;                          // a barrier of the block makes no thread wait
  std::function<bool(uint32_t)> lost_warp_barrier;    // one of a warp, in that line, that is no vote: as lost_barrier
  std::function<bool(const uint32_t*)> forged_line;   // LL lines there are seen with the flag after their own
  std::function<bool(const uint64_t*)> skipped_wait;  // waits for such a word return at once
  BulkFault bulk = BulkFault::kNone;
};

// One stream does not run from one time to another.
struct Stall {
  uint32_t stream = 0;
  uint64_t from = 0, until = 0;
};

struct Options {
  uint64_t seed = 0;  // 0: round robin
  Faults faults;
  Stall stall = {};
};

struct Kernel {
  uint32_t blocks;
  uint32_t threads;
  std::function<void()> body;          // what each thread runs
  std::function<void()> done;          // after the last one, before the stream's next kernel; may be empty
  std::function<void()> trapped = {};  // called by a thread that traps; may be empty
};
using Stream = std::vector<Kernel>;

struct Block;

// A thread's part of what the threads of a warp store at once (cuda/sim/ptx/words.cc).
struct LineStore {
  char* to;
  Vec value;
  bool flag;  // the last part of a line, whose second half is the flag
};
// What the threads of a warp load at once: 128 bytes.
struct LineImage {
  const char* base;
  Vec part[8];
  bool whole;
};

struct Thread {
  enum class State { kReady, kBarrier, kWarp, kDone };
  Block* block = nullptr;
  uint32_t index = 0;
  State state = State::kReady;
  bool said = false, answer = false;
  std::unique_ptr<Fiber> fiber;
  BulkThread bulk;
  bool converged = false;          // it has met its warp and accessed lines only since: for translated PTX
  const void* polled = nullptr;    // the last word or line that it loaded: for translated PTX
  bool barriers_released = false;  // since it has initialised barriers of bulk copies: for translated PTX
  char* shared = nullptr;          // its block's shared memory: for translated PTX
  uint64_t shared_bytes = 0;
};

// Threads that wait for each other at a barrier: a block or a warp.
struct Meeting {
  uint32_t size = 0, arrived = 0;
  bool said = false;
  std::vector<Thread*> waiting;
  std::atomic<uint32_t> order{0};  // the barrier's synchronisation, for ThreadSanitizer
  std::vector<LineStore> stores;   // since the warp's last barrier
  std::list<LineImage> images;     // the same
};

enum class Kind : uint8_t { kBytes, kLine, kWord, kAlias };
struct Pending {
  char* to;
  uint32_t bytes;
  Kind kind;
  Vec value;
};

struct Block {
  uint32_t index = 0, stream = 0, threads_left = 0;
  Meeting all;
  std::vector<std::unique_ptr<Meeting>> warps;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Pending> pending;
  BulkQueue bulk;
  std::vector<char> memory;  // dynamic shared memory of the launch
};

class Machine {
 public:
  static inline Machine* running = nullptr;
  static inline Thread* current = nullptr;

  Machine() = default;
  ~Machine();

  // Runs all kernels of all streams, each stream in order. Returns false if all remaining threads wait at barriers for
  // ever.
  bool Run(const std::vector<Stream>& streams, const Options& options = {});
  // Tells ThreadSanitizer that a host thread has waited for a stream, so that its kernels' accesses came before.
  void See(uint32_t stream) { orders_[stream].load(std::memory_order_acquire); }

  const Kernel& kernel() const { return (*streams_)[current->block->stream][next_[current->block->stream] - 1]; }
  uint64_t now() const { return now_; }
  const Faults& faults() const { return options_.faults; }
  bool delays() const { return !kThreadSanitizer && options_.seed != 0; }

  // The running thread's kernel has trapped. The machine goes on.
  void Trap() const {
    if (kernel().trapped) kernel().trapped();
  }

  // The running thread yields.
  void Yield();
  // The running thread yields at random; called at an access to memory.
  void Chance();
  // The barrier of a block or of a warp. Returns whether any of its threads has passed true.
  bool Meet(bool whole_block, bool said);

  void Delay(void* to, const void* value, uint32_t bytes, Kind kind);
  // To be called before the running block loads or stores there.
  void Settle(const void* at);
  // The same for any overlap, except for stores by an alias.
  void SettleRange(const void* at, size_t bytes);
  // Performs what the running warp has stored together, after all its threads have stored.
  void PerformLines();
  // The effect of a release on late stores, and of a fence.
  void Drain();
  // The effect of a fence between aliases: a later release orders the stores so far like any others.
  void JoinAliases();
  // The block's shared memory, 128-byte aligned.
  char* BlockMemory(size_t bytes);

 private:
  static constexpr size_t kLate = 100;  // the most stores of a block that are pending

  void Prepare(const std::vector<Stream>& streams, const Options& options);
  void PerformLines(Meeting& warp);
  uint64_t Random(uint64_t below);
  void DrainOne(Block& block, size_t which);
  void StartNext(uint32_t s);
  std::unique_ptr<Thread> Make(Block* block, uint32_t index);
  void Schedule();
  void Ended(Thread& thread);

  bool clean_ = true;
  Options options_;
  uint64_t random_ = 0, now_ = 0, unfinished_ = 0;
  const std::vector<Stream>* streams_ = nullptr;
  std::vector<size_t> next_;
  std::vector<std::vector<std::unique_ptr<Block>>> blocks_;  // of each stream
  std::vector<uint32_t> blocks_left_;
  std::vector<std::atomic<uint32_t>> orders_;
  std::vector<Thread*> ready_;
  Fiber scheduler_;
};

}  // namespace simt
}  // namespace jaxring::cuda

#include "cuda/sim/simt/device_host.h"
