// A doorbell: how a thread, here or in another process of the host, tells the engine's sleeping threads to look again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace jaxring {

// Whoever publishes data or frees room calls Notify; who listens is the link's business.
class Notifier {
 public:
  virtual ~Notifier() = default;
  virtual void Notify() = 0;
  // For whoever waits for what comes by a link: looks himself, instead of the thread that would be woken for it.
  // Whether anything came.
  virtual bool Look() { return false; }
};

// A futex word in a memfd page. The owner hands the descriptor's number to peers, which map the same page; the memory
// is unnamed, so nothing is left of it after the last process, however it ended.
class Doorbell final : public Notifier {
 public:
  // A doorbell of this process. Throws std::system_error.
  static std::unique_ptr<Doorbell> Create();
  // The doorbell behind `path` (/proc/<pid>/fd/<n>) of another process. Throws std::system_error.
  static std::unique_ptr<Doorbell> Open(const std::string& path);
  ~Doorbell() override;
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  void Notify() override;
  // Wakes up to `count` sleepers; whether there were any. One that was woken already and has not run yet counts: it
  // looks for work after this too.
  bool Wake(int count);
  // Wakes everyone who sleeps, for work that several threads can share.
  void NotifyAll();
  // Read before looking for work and given to Wait afterwards: what was rung in between is not missed.
  uint32_t Value() const { return page_->value.load(std::memory_order_seq_cst); }
  void Wait(uint32_t seen, int64_t timeout_us);
  int fd() const { return fd_; }
  // The owner's launching thread looks for what peers of an operation send, on a processor; until ClearWaiter.
  void SetWaiter(int processor, uint64_t operation) {
    page_->operation.store(operation, std::memory_order_relaxed);
    page_->waiter_cpu.store(processor + 1, std::memory_order_release);
  }
  void ClearWaiter() {
    page_->waiter_cpu.store(-std::abs(page_->waiter_cpu.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  }
  // That processor, or -1 while it does not look.
  int WaiterCpu() const { return std::max(page_->waiter_cpu.load(std::memory_order_relaxed), 0) - 1; }
  // Whether the owner may want a processor for something else than to look for what that operation's peers send: it sat
  // there last, or never sat.
  bool MayNeedCpu(int processor, uint64_t operation) const {
    const int32_t waiter_cpu = page_->waiter_cpu.load(std::memory_order_acquire);
    if (waiter_cpu == processor + 1) return page_->operation.load(std::memory_order_relaxed) != operation;
    return waiter_cpu == -processor - 1 || waiter_cpu == 0;
  }
  // System calls that this process has made to wake others, by all doorbells. Whoever finds work by looking costs none.
  static uint64_t wakes() { return wakes_.load(std::memory_order_relaxed); }

 private:
  struct Page {
    alignas(64) std::atomic<uint32_t> value;
    alignas(64) std::atomic<uint32_t> sleepers;
    alignas(64) std::atomic<int32_t> waiter_cpu;  // plus 1: new memory says none; negative: the last one
    std::atomic<uint64_t> operation;              // that is waited for there
  };
  Doorbell(int fd, Page* page) : fd_(fd), page_(page) {}
  static std::unique_ptr<Doorbell> Map(int fd);

  int fd_;
  Page* page_;
  inline static std::atomic<uint64_t> wakes_{0};
};

}  // namespace jaxring
