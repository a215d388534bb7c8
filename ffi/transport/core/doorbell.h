// A doorbell (an eventcount): a thread of this or another process of the host rings it to make the engine's sleeping
// threads look for work again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "transport/core/send_totals.h"

namespace jaxring {

// A thread that publishes data or frees room calls Notify. Which threads this wakes depends on the link.
class Notifier {
 public:
  virtual ~Notifier() = default;
  virtual void Notify() = 0;
  // Polls the link on the calling thread instead of waking its I/O thread. Returns whether anything arrived.
  virtual bool Poll() { return false; }
  // False if the link has no connection that counts.
  virtual bool GetTotals(SendTotals* /*totals*/) const { return false; }
};

// A futex word in a memfd page. The owner gives the descriptor's number to its peers, which map the same page. The
// memory has no name, so none of it is left after the last process has ended, however it ended.
class Doorbell : public Notifier {
 public:
  // A doorbell of this process. Throws std::system_error.
  static std::unique_ptr<Doorbell> Create();
  // The doorbell behind `path` (/proc/<pid>/fd/<n>) of another process. Throws std::system_error.
  static std::unique_ptr<Doorbell> Open(const std::string& path);
  ~Doorbell() override;
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  void Notify() final;
  // Wakes up to `count` sleeping threads. Returns whether there were any. A thread that was woken before and has not
  // run yet counts, since it will look for work after this call.
  bool Wake(int count);
  // Wakes all sleeping threads, for work that several of them can share.
  void NotifyAll();
  // A thread reads this before it looks for work and passes it to Wait, which returns at once if the doorbell was rung
  // in between.
  uint32_t Value() const { return page_->value.load(std::memory_order_seq_cst); }
  // Returns whether a ring has woken it: one that wakes a single thread has then woken no other.
  bool Wait(uint32_t seen, int64_t timeout_us);
  int fd() const { return fd_; }
  // The owner's launching thread says on which CPU it polls for the messages of which operation, until ClearWaiter.
  void SetWaiter(int cpu, uint64_t operation) {
    page_->operation.store(operation, std::memory_order_relaxed);
    page_->waiter_cpu.store(cpu + 1, std::memory_order_release);
  }
  void ClearWaiter() {
    page_->waiter_cpu.store(-std::abs(page_->waiter_cpu.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  }
  // That CPU, or -1 while the thread does not poll.
  int WaiterCpu() const { return std::max(page_->waiter_cpu.load(std::memory_order_relaxed), 0) - 1; }
  // Whether the owner may need a CPU for anything but waiting for that operation: it waits there for another one, has
  // last waited there, or has never waited.
  bool MayNeedCpu(int cpu, uint64_t operation) const {
    const int32_t waiter_cpu = page_->waiter_cpu.load(std::memory_order_acquire);
    if (waiter_cpu == cpu + 1) return page_->operation.load(std::memory_order_relaxed) != operation;
    return waiter_cpu == -cpu - 1 || waiter_cpu == 0;
  }
  // Futex wake-ups on all doorbells by this module; the CUDA engine's counts its own. Work found by polling costs none.
  static uint64_t wakes() { return wakes_.load(std::memory_order_relaxed); }

 protected:
  struct Page {
    alignas(64) std::atomic<uint32_t> value;
    alignas(64) std::atomic<uint32_t> sleepers;
    alignas(64) std::atomic<int32_t> waiter_cpu;  // CPU + 1 while a thread polls there, negated afterwards; 0 before
    std::atomic<uint64_t> operation;              // for which it polls there
  };
  // Owns both, unless `fd` is -1.
  Doorbell(int fd, Page* page) : fd_(fd), page_(page) {}
  Page& page() { return *page_; }

 private:
  static std::unique_ptr<Doorbell> Map(int fd);
  // Wakes that many of the threads that sleep here. A simulation has threads of its own.
  virtual void WakeSleepers(int count);

  const int fd_;
  Page* const page_;
  inline static std::atomic<uint64_t> wakes_{0};
};

}  // namespace jaxring
