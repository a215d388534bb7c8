// Whether an engine takes operations: it may be halted until the job is rebuilt, or end with its process.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace jaxring {

class Halting {
 public:
  struct Halted {
    bool news;           // it was not halted before
    bool tell;           // the other processes are to be told, which has not been asked for before
    std::string reason;  // the first one
  };
  // With `tell` the caller wants other processes to be told.
  Halted Halt(const std::string& reason, bool tell);
  // For good. False if that has happened before.
  bool End(const std::string& reason);
  bool halted() const { return halted_.load(std::memory_order_acquire); }
  // The reason if it is halted.
  std::optional<std::string> Reason() {
    if (!halted_.load()) [[likely]]
      return std::nullopt;
    return Known();
  }
  // A new epoch begins: other processes may be told again.
  void BeginEpoch();
  void Resume();

 private:
  [[gnu::cold]] std::string Known();

  Mutex mutex_;  // no other mutex is taken under it
  std::string reason_ JAXRING_GUARDED_BY(mutex_);
  bool ending_ JAXRING_GUARDED_BY(mutex_) = false;
  bool told_ JAXRING_GUARDED_BY(mutex_) = false;
  std::atomic<bool> halted_{false};
};

}  // namespace jaxring
