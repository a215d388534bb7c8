// The shim's machine: scheduling, barriers, late stores, streams.
#include "cuda/sim/simt/simt.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace jaxring::cuda::simt {
namespace {

Vec Copy(const void* value, uint32_t bytes) {
  Vec copy{};
  std::memcpy(&copy, value, bytes);
  return copy;
}

void Half(char* to, const uint32_t* words) {
  uint64_t both;
  std::memcpy(&both, words, 8);
  __atomic_store_n(reinterpret_cast<uint64_t*>(to), both, __ATOMIC_RELAXED);
}

void Perform(const Pending& store) {
  if (store.kind == Kind::kBytes || store.kind == Kind::kAlias) {
    std::memcpy(store.to, &store.value, store.bytes);
  } else if (store.bytes == 4) {
    __atomic_store_n(reinterpret_cast<uint32_t*>(store.to), store.value.w[0], __ATOMIC_RELEASE);
  } else {
    Half(store.to, &store.value.w[0]);
    if (store.kind == Kind::kLine) Half(store.to + 8, &store.value.w[2]);
  }
}

}  // namespace

Machine::~Machine() {
  Unseen unseen;
  blocks_.clear();
}

bool Machine::Run(const std::vector<Stream>& streams, const Options& options) {
  {
    Unseen unseen;
    scheduler_.BeThisThread();
    Prepare(streams, options);
    for (auto& order : orders_) order.store(1, std::memory_order_release);
    for (uint32_t s = 0; s < streams.size(); ++s) StartNext(s);
    Schedule();
  }
  for (auto& order : orders_) order.load(std::memory_order_acquire);
  running = nullptr;
  clean_ = unfinished_ == 0;  // the fibers can be reused
  unfinished_ = 0;
  return clean_;
}

void Machine::Yield() {
  Unseen unseen;
  Thread* self = current;
  self->fiber->SwitchTo(scheduler_);
}

void Machine::Chance() {
  Unseen unseen;
  if (options_.seed == 0 || Random(8) != 0) return;
  Block& block = *current->block;
  if (!block.pending.empty() && Random(2) == 0) DrainOne(block, Random(block.pending.size()));
  if (delays() && !block.bulk.empty() && Random(2) == 0) block.bulk.Step(Random(block.bulk.size()));
  current->fiber->SwitchTo(scheduler_);
}

bool Machine::Meet(bool whole_block, bool said) {
  Thread* self = current;
  Meeting& meeting = whole_block ? self->block->all : *self->block->warps[self->index / 32];
  meeting.order.fetch_add(1, std::memory_order_acq_rel);
  if (meeting.arrived + 1 == meeting.size) {
    if (whole_block) {
      for (auto& warp : self->block->warps) PerformLines(*warp);
    } else {
      PerformLines(meeting);
      Unseen unseen;
      meeting.images.clear();
    }
  }
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
  self->converged = false;
  if (whole_block) self->bulk.fenced = false;
  return self->answer;
}

void Machine::Delay(void* to, const void* value, uint32_t bytes, Kind kind) {
  if (!delays()) return Perform({static_cast<char*>(to), bytes, kind, Copy(value, bytes)});
  // Stores to one location keep their order, since a second store there has been ordered after the first.
  Settle(to);
  std::vector<Pending>& pending = current->block->pending;
  if (pending.size() == kLate) DrainOne(*current->block, Random(kLate));
  pending.push_back({static_cast<char*>(to), bytes, kind, Copy(value, bytes)});
}

void Machine::Settle(const void* at) {
  Unseen unseen;
  std::vector<Pending>& pending = current->block->pending;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].to == at) DrainOne(*current->block, i--);
  }
}

void Machine::SettleRange(const void* at, size_t bytes) {
  Unseen unseen;
  const char* from = static_cast<const char*>(at);
  std::vector<Pending>& pending = current->block->pending;
  for (size_t i = 0; i < pending.size(); ++i) {
    const Pending& store = pending[i];
    if (store.kind == Kind::kAlias || store.to >= from + bytes || store.to + store.bytes <= from) continue;
    DrainOne(*current->block, i--);
  }
}

void Machine::PerformLines() {
  Unseen unseen;
  Block& block = *current->block;
  const size_t first = current->index / 32 * 32;
  if (block.warps[first / 32]->stores.empty()) return;
  for (size_t t = first; t < block.threads.size() && t < first + 32; ++t) {
    while (block.threads[t]->converged && block.threads[t]->state == Thread::State::kReady) Yield();
  }
  PerformLines(*block.warps[first / 32]);
}

void Machine::PerformLines(Meeting& warp) {
  Unseen unseen;
  if (warp.stores.empty()) return;
  std::vector<LineStore> stores;
  stores.swap(warp.stores);
  for (const LineStore& store : stores) {
    const auto line = [](const LineStore& each) { return reinterpret_cast<uintptr_t>(each.to) / 128; };
    const auto parts =
        std::count_if(stores.begin(), stores.end(), [&](const LineStore& each) { return line(each) == line(store); });
    if (parts == 8) continue;
    std::fprintf(stderr, "%ld threads of a warp, not 8, store a line of 128 bytes\n", static_cast<long>(parts));
    std::abort();
  }
  // A line arrives as a whole: its flag is stored last.
  for (const bool flags : {faults().early_flag, !faults().early_flag}) {
    for (const LineStore& store : stores) {
      if (store.flag != flags) continue;
      Half(store.to, &store.value.w[0]);
      Half(store.to + 8, &store.value.w[2]);
      if (current != nullptr) Chance();
    }
  }
}

void Machine::Drain() {
  PerformLines();
  Unseen unseen;
  Block& block = *current->block;
  for (size_t i = block.pending.size(); i-- > 0;) {
    if (block.pending[i].kind != Kind::kAlias) DrainOne(block, i);
  }
}

void Machine::JoinAliases() {
  Unseen unseen;
  for (Pending& store : current->block->pending) {
    if (store.kind == Kind::kAlias) store.kind = Kind::kBytes;
  }
}

char* Machine::BlockMemory(size_t bytes) {
  Unseen unseen;
  std::vector<char>& memory = current->block->memory;
  // Any former contents.
  if (memory.size() < bytes + 128) memory.assign(bytes + 128, '\xEE');
  return memory.data() + (128 - reinterpret_cast<uintptr_t>(memory.data()) % 128);
}

void Machine::Prepare(const std::vector<Stream>& streams, const Options& options) {
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

uint64_t Machine::Random(uint64_t below) {
  random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
  return (random_ >> 33) % below;
}

void Machine::DrainOne(Block& block, size_t which) {
  Perform(block.pending[which]);
  block.pending[which] = block.pending.back();
  block.pending.pop_back();
}

void Machine::StartNext(uint32_t s) {
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

std::unique_ptr<Thread> Machine::Make(Block* block, uint32_t index) {
  auto thread = std::make_unique<Thread>();
  thread->block = block;
  thread->index = index;
  thread->fiber = std::make_unique<Fiber>([this, self = thread.get()] {
    while (true) {  // a fiber runs the thread at its index in one kernel of the stream after another
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

void Machine::Schedule() {
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

void Machine::Ended(Thread& thread) {
  --unfinished_;
  Block& block = *thread.block;
  if (--block.threads_left != 0) return;
  for (auto& warp : block.warps) PerformLines(*warp);
  while (!block.pending.empty()) DrainOne(block, block.pending.size() - 1);
  while (!block.bulk.empty()) block.bulk.Step(0);
  const uint32_t s = block.stream;
  if (--blocks_left_[s] != 0) return;
  const Kernel& kernel = (*streams_)[s][next_[s] - 1];
  if (kernel.done) kernel.done();
  StartNext(s);
}

}  // namespace jaxring::cuda::simt
