// Warnings for the log, until Python takes them.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace jaxring {

class Warnings {
 public:
  void Add(std::string text) {
    MutexLock lock(mutex_);
    texts_.push_back(std::move(text));
  }
  // The first one about this key only. False if it is a further one.
  bool AddOnce(uint64_t key, const std::string& text) {
    MutexLock lock(mutex_);
    if (!keys_.insert(key).second) return false;
    texts_.push_back(text);
    return true;
  }
  std::vector<std::string> Take() {
    MutexLock lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  Mutex mutex_;
  std::vector<std::string> texts_ JAXRING_GUARDED_BY(mutex_);
  std::set<uint64_t> keys_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
