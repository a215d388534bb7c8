// The completion of a call that holds several operations: it follows the last of them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/completion.h"
#include "engine/operation.h"

namespace jaxring {

class JointCompletion {
 public:
  JointCompletion(CompletionPool* pool, Completion done) : state_(std::make_shared<State>()) {
    state_->pool = pool;
    state_->done = std::move(done);
  }

  // The completion of one more operation. It does nothing that takes time.
  Completion Part() {
    state_->left.fetch_add(1, std::memory_order_relaxed);
    return [state = state_](const Status& status) {
      if (!status.ok()) {
        std::lock_guard lock(state->mutex);
        if (state->status.ok()) state->status = status;
      }
      if (!state->Last()) return;
      state->pool->Post([state] { state->done(state->status); });
    };
  }

  // No more operations. If all have ended by now, the call is completed on this thread.
  void Close() {
    if (state_->Last()) state_->done(state_->status);
  }

 private:
  struct State {
    bool Last() { return left.fetch_sub(1, std::memory_order_acq_rel) == 1; }
    CompletionPool* pool;
    Completion done;
    std::atomic<int> left{1};  // the caller counts until Close
    std::mutex mutex;
    Status status;  // the first failure
  };
  std::shared_ptr<State> state_;
};

}  // namespace jaxring
