#include "engine/workers/workers.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "base/thread_name.h"

namespace jaxring {
namespace {

// A worker with operations in flight wakes up after this time even if the doorbell did not ring.
constexpr int64_t kSleepUs = 100000, kIdleUs = 10000000;

}  // namespace

Workers::Workers(int count, bool stepped, WaitPolicy::Duration spin, WaitPolicy::Duration patience, Network* network,
                 ActiveOperations* active, EngineCounters* counters, Execute execute)
    : count_(count),
      stepped_(stepped),
      waits_(spin, patience),
      network_(network),
      active_(active),
      counters_(counters),
      execute_(std::move(execute)),
      idle_(network->MakeDoorbell()) {}

void Workers::Start() {
  if (stepped_ || started_.load(std::memory_order_acquire)) return;
  MutexLock lock(mutex_);
  try {
    while (static_cast<int>(threads_.size()) < count_) threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error& error) {
    // Those that there are do the others' work.
    if (threads_.empty()) {
      throw std::runtime_error(
          std::string("no worker thread can be started: ") + error.code().message() +
          ". Raise the limit of processes and threads (ulimit -u), or that of the container (pids)");
    }
  }
  started_.store(true, std::memory_order_release);
}

void Workers::Stop() {
  stop_ = true;
  network_->doorbell().NotifyAll();
  idle_->NotifyAll();
  MutexLock lock(mutex_);
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::Wake(size_t lanes) {
  const int count = static_cast<int>(std::min(lanes, static_cast<size_t>(count_)));
  if (!idle_->Wake(count) || count > 1) network_->doorbell().Wake(count);
}

void Workers::TakeOverFullRings() {
  if (const uint64_t taken = network_->unexpected().TakeOver(network_->links())) counters_->spills += taken;
}

Workers::Next Workers::Look(Worker& worker) {
  // Read before anything is looked at: a thread with news for this worker rings one of them afterwards.
  const uint32_t rung = network_->doorbell().Value(), called = idle_->Value();
  if (active_->version() != worker.seen_version) worker.ops = active_->Get(&worker.seen_version);
  bool moved = false;
  for (auto& op : worker.ops) {
    while (execute_(op)) moved = true;
  }
  if (moved) {
    worker.last_progress = Clock::now();
    return {true};
  }
  if (!worker.ops.empty()) TakeOverFullRings();
  if (!worker.ops.empty() && Clock::now() - worker.last_progress < waits_.current().spin) return {};
  // Finished operations must not keep buffers alive while this worker sleeps.
  if (active_->count() == 0) {
    worker.ops.clear();
    worker.seen_version = ~uint64_t{0};
  }
  counters_->sleeps++;
  if (worker.ops.empty()) return {false, idle_.get(), called, kIdleUs};
  network_->busy_pollers().EnableEvents();
  return {false, &network_->doorbell(), rung, kSleepUs};
}

void Workers::Run() {
  NameThread("jaxring-worker");
  Worker worker;
  while (!stop_) {
    const Next next = Look(worker);
    if (next.sleep != nullptr) {
      next.sleep->Wait(next.seen, next.timeout_us);
      worker.last_progress = Clock::now();
    } else if (!next.moved) {
      Clock::Yield();
    }
  }
}

}  // namespace jaxring
