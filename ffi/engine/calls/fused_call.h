// An execution of a fused call, which has several operations. It completes its ranks when the last operation ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/operation/operation.h"
#include "engine/threads/completion.h"

namespace jaxring {

class FusedCall {
 public:
  // `others` are the completions of the ranks whose handlers wait for a future. `own` is that of the launching thread's
  // rank, or empty.
  FusedCall(CompletionPool* pool, size_t operations, std::vector<Completion> others, Completion own)
      : pool_(pool), left_(operations + 1), others_(std::move(others)), own_(std::move(own)) {}

  // An operation has ended, on any thread.
  void End(const Status& status) {
    if (!status.ok()) {
      MutexLock lock(mutex_);
      if (status_.ok()) status_ = status;
    }
    if (!Last()) return;
    if (own_) others_.push_back(std::move(own_));
    CompleteOthers();
  }

  // Called once, by the launching thread when it has nothing more to do for the operations. If all have ended, it
  // completes its own rank itself, without another thread.
  void Launched() {
    if (!Last()) return;
    CompleteOthers();
    if (own_) own_(Result());
  }

 private:
  // Only to be called after Last: nobody writes the status any more.
  const Status& Result() const JAXRING_NO_THREAD_SAFETY_ANALYSIS { return status_; }
  bool Last() { return left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  void CompleteOthers() {
    std::vector<CompletionPool::Work> works;
    works.reserve(others_.size());
    for (Completion& done : others_) works.push_back([done = std::move(done), status = Result()] { done(status); });
    pool_->PostAll(&works);
  }

  CompletionPool* pool_;
  std::atomic<size_t> left_;  // the launching thread counts until Launched
  std::vector<Completion> others_;
  Completion own_;
  Mutex mutex_;
  Status status_ JAXRING_GUARDED_BY(mutex_);  // the first failure
};

}  // namespace jaxring
