// A SIMT machine on the host: kernels' own source runs on it in the tests. Blocks of threads in streams, barriers,
// votes, a clock; no two threads run at once, and the order is round robin or, with a seed, adversarial:
// - any thread may lose its turn at any access to memory, and whole blocks are left behind for a while;
// - stores that others read (StoreFar, StoreLine) are done late and in any order, but before their block's next
//   release; stores of words, releases too, are done late but before their block's next fence.
// Time is counted in switches, so what waits for long is found out in no time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ffi/cuda/fibers.h"

namespace jaxring::cuda {

struct alignas(16) Vec {
  uint32_t w[4];
};

namespace simt {

// What a broken machine or a broken kernel would do; for tests that the tests notice.
struct Faults {
  bool lost_release = false;                          // a release orders nothing
  bool lost_acquire = false;                          // an acquire orders nothing: for ThreadSanitizer
  bool lost_fence = false;                            // a fence orders nothing
  bool early_flag = false;                            // a line's flags are there before its data
  std::function<bool(const uint64_t*)> skipped_wait;  // nobody waits for such a word
};

// One stream gets no turn from one time to another.
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
  std::function<void()> body;  // what each thread runs
  std::function<void()> done;  // after the last one, before the stream's next kernel; may be empty
};
using Stream = std::vector<Kernel>;

struct Block;

struct Thread {
  enum class State { kReady, kBarrier, kWarp, kDone };
  Block* block = nullptr;
  uint32_t index = 0;
  State state = State::kReady;
  bool said = false, answer = false;
  std::unique_ptr<Fiber> fiber;
};

// Those who wait for each other: a block or a warp.
struct Meeting {
  uint32_t size = 0, arrived = 0;
  bool said = false;
  std::vector<Thread*> waiting;
  std::atomic<uint32_t> order{0};  // the barrier's synchronisation, for ThreadSanitizer
};

enum class Kind : uint8_t { kBytes, kLine, kWord };
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
};

class Machine {
 public:
  static inline Machine* running = nullptr;
  static inline Thread* current = nullptr;

  Machine() = default;
  ~Machine() {
    Unseen unseen;
    blocks_.clear();
  }

  // Runs all kernels of all streams, each stream in its order. False if all threads left wait at barriers for ever.
  bool Run(const std::vector<Stream>& streams, const Options& options = {}) {
    {
      Unseen unseen;
      Prepare(streams, options);
      for (auto& order : orders_) order.store(1, std::memory_order_release);
      for (uint32_t s = 0; s < streams.size(); ++s) StartNext(s);
      Schedule();
    }
    for (auto& order : orders_) order.load(std::memory_order_acquire);
    running = nullptr;
    clean_ = unfinished_ == 0;  // their threads can serve again
    unfinished_ = 0;
    return clean_;
  }

  const Kernel& kernel() const { return (*streams_)[current->block->stream][next_[current->block->stream] - 1]; }
  uint64_t now() const { return now_; }
  const Faults& faults() const { return options_.faults; }
  bool delays() const { return !kThreadSanitizer && options_.seed != 0; }

  // The thread that runs gives its turn away.
  void Yield() {
    Unseen unseen;
    Thread* self = current;
    self->fiber->SwitchTo(scheduler_);
  }
  // At an access to memory: perhaps.
  void Chance() {
    Unseen unseen;
    if (options_.seed == 0 || Random(8) != 0) return;
    Block& block = *current->block;
    if (!block.pending.empty() && Random(2) == 0) DrainOne(block, Random(block.pending.size()));
    current->fiber->SwitchTo(scheduler_);
  }

  bool Meet(bool whole_block, bool said) {
    Thread* self = current;
    Meeting& meeting = whole_block ? self->block->all : *self->block->warps[self->index / 32];
    meeting.order.fetch_add(1, std::memory_order_acq_rel);
    {
      Unseen unseen;
      meeting.said |= said;
      if (++meeting.arrived == meeting.size) {
        self->answer = meeting.said;
        for (Thread* other : meeting.waiting) {
          other->answer = meeting.said;
          other->state = Thread::State::kReady;
          ready_.push_back(other);
        }
        meeting.waiting.clear();
        meeting.arrived = 0;
        meeting.said = false;
      } else {
        meeting.waiting.push_back(self);
        self->state = whole_block ? Thread::State::kBarrier : Thread::State::kWarp;
        self->fiber->SwitchTo(scheduler_);
      }
    }
    meeting.order.load(std::memory_order_acquire);
    Unseen unseen;
    return self->answer;
  }

  void Delay(void* to, const void* value, uint32_t bytes, Kind kind) {
    if (!delays()) return Perform({static_cast<char*>(to), bytes, kind, Copy(value, bytes)});
    // Stores to one place keep their order: whoever stores there again has been ordered after the first.
    Settle(to);
    std::vector<Pending>& pending = current->block->pending;
    if (pending.size() == kLate) DrainOne(*current->block, Random(kLate));
    pending.push_back({static_cast<char*>(to), bytes, kind, Copy(value, bytes)});
  }
  // Before the block that runs loads or stores there.
  void Settle(const void* at) {
    Unseen unseen;
    std::vector<Pending>& pending = current->block->pending;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (pending[i].to == at) DrainOne(*current->block, i--);
    }
  }
  // What a release does, and more so a fence.
  void Drain() {
    Unseen unseen;
    Block& block = *current->block;
    while (!block.pending.empty()) DrainOne(block, block.pending.size() - 1);
  }

 private:
  static constexpr size_t kLate = 100;  // stores of a block that are not done yet, at most

  void Prepare(const std::vector<Stream>& streams, const Options& options) {
    options_ = options;
    random_ = options.seed;
    now_ = 1000;
    streams_ = &streams;
    next_.assign(streams.size(), 0);
    if (!clean_) blocks_.clear();
    if (blocks_.size() < streams.size()) blocks_.resize(streams.size());
    clean_ = false;
    blocks_left_.assign(streams.size(), 0);
    orders_ = std::vector<std::atomic<uint32_t>>(streams.size());
    ready_.clear();
    running = this;
  }
  uint64_t Random(uint64_t below) {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return (random_ >> 33) % below;
  }
  static Vec Copy(const void* value, uint32_t bytes) {
    Vec copy{};
    std::memcpy(&copy, value, bytes);
    return copy;
  }
  static void Half(char* to, const uint32_t* words) {
    uint64_t both;
    std::memcpy(&both, words, 8);
    std::atomic_ref(*reinterpret_cast<uint64_t*>(to)).store(both, std::memory_order_relaxed);
  }
  static void Perform(const Pending& store) {
    if (store.kind == Kind::kBytes) {
      std::memcpy(store.to, &store.value, store.bytes);
    } else if (store.bytes == 4) {
      std::atomic_ref(*reinterpret_cast<uint32_t*>(store.to)).store(store.value.w[0], std::memory_order_release);
    } else {
      Half(store.to, &store.value.w[0]);
      if (store.kind == Kind::kLine) Half(store.to + 8, &store.value.w[2]);
    }
  }
  void DrainOne(Block& block, size_t which) {
    Perform(block.pending[which]);
    block.pending[which] = block.pending.back();
    block.pending.pop_back();
  }

  void StartNext(uint32_t s) {
    const Stream& stream = (*streams_)[s];
    if (next_[s] == stream.size()) return;
    const Kernel& kernel = stream[next_[s]++];
    auto& blocks = blocks_[s];
    while (blocks.size() < kernel.blocks) blocks.push_back(std::make_unique<Block>());
    blocks_left_[s] = kernel.blocks;
    for (uint32_t b = 0; b < kernel.blocks; ++b) {
      Block& block = *blocks[b];
      block.index = b;
      block.stream = s;
      block.threads_left = block.all.size = kernel.threads;
      if (block.threads.size() != kernel.threads) block.threads.clear();
      block.warps.resize((kernel.threads + 31) / 32);
      for (uint32_t w = 0; w < block.warps.size(); ++w) {
        if (!block.warps[w]) block.warps[w] = std::make_unique<Meeting>();
        block.warps[w]->size = std::min<uint32_t>(32, kernel.threads - 32 * w);
      }
      for (uint32_t t = 0; t < kernel.threads; ++t) {
        if (block.threads.size() == t) block.threads.push_back(Make(&block, t));
        block.threads[t]->state = Thread::State::kReady;
        ready_.push_back(block.threads[t].get());
        ++unfinished_;
      }
    }
  }

  std::unique_ptr<Thread> Make(Block* block, uint32_t index) {
    auto thread = std::make_unique<Thread>();
    thread->block = block;
    thread->index = index;
    thread->fiber = std::make_unique<Fiber>([this, self = thread.get()] {
      while (true) {  // a fiber serves its place in one kernel of the stream after another
        std::atomic<uint32_t>& order = orders_[self->block->stream];
        order.load(std::memory_order_acquire);
        kernel().body();
        order.fetch_add(1, std::memory_order_release);
        {
          Unseen unseen;
          self->state = Thread::State::kDone;
        }
        self->fiber->SwitchTo(scheduler_);
      }
    });
    return thread;
  }

  void Schedule() {
    size_t turn = 0;
    uint64_t patience = 0;
    const Block* behind = nullptr;
    while (!ready_.empty()) {
      size_t which = 0;
      if (options_.seed != 0) {
        which = Random(ready_.size());
        if (patience-- == 0) {
          patience = 200 + Random(2000);
          behind = ready_[which]->block;
        }
        if (ready_[which]->block == behind && Random(16) != 0) which = Random(ready_.size());
      } else {
        which = turn++ % ready_.size();
      }
      Thread* thread = ready_[which];
      now_ += 10;
      const Stall& stall = options_.stall;
      if (now_ >= stall.from && now_ < stall.until && thread->block->stream == stall.stream) continue;
      current = thread;
      scheduler_.SwitchTo(*thread->fiber);
      current = nullptr;
      if (thread->state == Thread::State::kReady) continue;
      ready_[which] = ready_.back();
      ready_.pop_back();
      if (thread->state == Thread::State::kDone) Ended(*thread);
    }
  }

  void Ended(Thread& thread) {
    --unfinished_;
    Block& block = *thread.block;
    if (--block.threads_left != 0) return;
    while (!block.pending.empty()) DrainOne(block, block.pending.size() - 1);
    const uint32_t s = block.stream;
    if (--blocks_left_[s] != 0) return;
    const Kernel& kernel = (*streams_)[s][next_[s] - 1];
    if (kernel.done) kernel.done();
    StartNext(s);
  }

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

#include "ffi/cuda/device_host.h"
