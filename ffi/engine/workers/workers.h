// The worker threads: they execute the lanes of the operations in flight that launching threads have left to them, and
// sleep when no lane can make progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/operation/active_operations.h"
#include "engine/threads/wait_policy.h"
#include "engine/workers/counters.h"
#include "network/network.h"

namespace jaxring {

class Workers {
 public:
  // Advances every lane of an operation once; true if any made progress.
  using Execute = std::function<bool(const std::shared_ptr<Operation>& op)>;

  // `network`, `active` and `counters` must outlive it. `stepped`: without threads, whose caller runs each worker by
  // Look. `spin`, `patience`: see WaitPolicies.
  Workers(int count, bool stepped, WaitPolicy::Duration spin, WaitPolicy::Duration patience, Network* network,
          ActiveOperations* active, EngineCounters* counters, Execute execute);
  ~Workers() { Stop(); }
  Workers(const Workers&) = delete;

  // Starts as many threads as the system gives, once. Throws std::runtime_error if it gives none; then call it again.
  void Start();
  void Stop();
  // Wakes workers for operations of so many lanes that have become active.
  void Wake(size_t lanes);
  // Moves the messages of full rings to the unexpected-message queue.
  void TakeOverFullRings();
  // How the engine's threads wait.
  WaitPolicies& waits() { return waits_; }

  // What a worker keeps from one look to the next.
  struct Worker {
    ActiveOperations::List ops;
    uint64_t seen_version = ~uint64_t{0};
    Clock::time_point last_progress = Clock::now();
  };
  // What it does then: it looks again at once after progress, lets others run while it polls, or sleeps until the
  // doorbell has another value than `seen`.
  struct Next {
    bool moved = false;
    Doorbell* sleep = nullptr;
    uint32_t seen = 0;
    int64_t timeout_us = 0;
  };
  Next Look(Worker& worker);

 private:
  void Run();

  const int count_;
  const bool stepped_;
  WaitPolicies waits_;
  Network* const network_;
  ActiveOperations* const active_;
  EngineCounters* const counters_;
  const Execute execute_;
  // Peers ring the network's doorbell when they send a message or free a slot. Only workers with operations in flight
  // sleep on it, and a proxy with connections. Other workers sleep on this one, so that a message for a thread that is
  // polling costs its sender no system call.
  const std::unique_ptr<Doorbell> idle_;
  std::atomic<bool> started_{false}, stop_{false};
  Mutex mutex_;                                                  // no other mutex is taken under it
  std::vector<std::thread> threads_ JAXRING_GUARDED_BY(mutex_);  // the last member: they use everything above
};

}  // namespace jaxring
