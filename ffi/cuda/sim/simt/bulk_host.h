// Bulk copies on the shim. A requested copy is performed at any time and in any order with others, in two steps: its
// source is read, then its target is written. A copy that no thread waits for is performed at the end of its block.
//
// A copy without a proxy fence since its thread's last synchronisation may read stale bytes and may leave its target
// stale, so it gives wrong bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/sim/simt/fibers.h"

namespace jaxring::cuda::simt {

// The steps that a faulty kernel would omit.
enum class BulkFault : uint8_t {
  kNone = 0,
  kNoInit,     // the fence after the initialisation of the barriers
  kNoFence,    // the proxy fence
  kNoArrival,  // the wait for a load
  kNoReuse,    // the wait until a stage has been read
  kNoStored,   // the wait for stores
  kReadOnly,   // that one waits for their reads only
};

// A thread's state.
struct BulkThread {
  bool fenced = false;  // since its last synchronisation with other threads
  uint32_t group = 0;   // that its stores belong to
};

// A block's state.
class BulkQueue {
 public:
  // Whether the hardware knows the barriers of this launch.
  bool initialised = false;
  bool empty() const { return copies_.empty(); }
  size_t size() const { return copies_.size(); }

  // `arrived` is a load's: the bytes that are still to come are in the upper half, phases that ended in the lower.
  static void Expect(uint64_t* arrived, uint32_t bytes) { *arrived += uint64_t{bytes} << 32; }
  void Load(char* to, const char* from, uint32_t bytes, uint64_t* arrived, const BulkThread& by) {
    Unseen unseen;
    copies_.push_back({&by, by.group, to, from, bytes, arrived, !by.fenced || !initialised, {}});
  }
  void Store(char* to, const char* from, uint32_t bytes, const BulkThread& by) {
    Unseen unseen;
    copies_.push_back({&by, by.group, to, from, bytes, nullptr, !by.fenced, {}});
  }

  // Performs the loads for which a thread waits.
  void FinishLoad(const uint64_t* arrived) {
    for (size_t i = 0; i < copies_.size(); ++i) {
      while (i < copies_.size() && copies_[i].arrived == arrived) Step(i);
    }
  }
  // Performs a thread's stores except those of its current group and the `newest` groups before it. Without `whole`,
  // performs their reads only.
  void FinishStores(const BulkThread& by, uint32_t newest, bool whole) {
    const auto waits = [&](const Copy& copy) {
      return copy.by == &by && copy.arrived == nullptr && copy.group + newest < by.group &&
             (whole || copy.read.empty());
    };
    for (size_t i = 0; i < copies_.size(); ++i) {
      while (i < copies_.size() && waits(copies_[i])) Step(i);
    }
  }

  // Performs the next step of a copy. A finished copy's entry is replaced by the newest one.
  void Step(size_t which) {
    Copy& copy = copies_[which];
    if (copy.read.empty()) {
      {
        Unseen unseen;
        copy.read.resize(copy.bytes);
      }
      std::memcpy(copy.read.data(), copy.from, copy.bytes);
      if (copy.arrived == nullptr) return;
    }
    if (copy.stale) {
      for (char& byte : copy.read) byte ^= copy.arrived != nullptr ? 0x3C : 0x5A;
    }
    std::memcpy(copy.to, copy.read.data(), copy.bytes);
    if (copy.arrived != nullptr) {
      *copy.arrived -= uint64_t{copy.bytes} << 32;
      if (*copy.arrived >> 32 == 0) ++*copy.arrived;
    }
    Unseen unseen;
    copies_[which] = std::move(copies_.back());
    copies_.pop_back();
  }

 private:
  struct Copy {
    const BulkThread* by;
    uint32_t group;
    char* to;
    const char* from;
    uint32_t bytes;
    uint64_t* arrived;  // nullptr: a store
    bool stale;
    std::vector<char> read;
  };
  std::vector<Copy> copies_;
};

}  // namespace jaxring::cuda::simt
