// Why a communicator cannot be used any more, and what its launches were, for the sentences that say so.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.h"

namespace jaxring::cuda {

class GroupHealth {
 public:
  // `abort_word` is zero and in pinned memory, which is never freed: kernels read it.
  explicit GroupHealth(uint32_t* abort_word) : abort_(abort_word) {}
  // The word that ends its launches on all devices.
  const uint32_t* abort_word() const { return abort_; }

  // Break records why the communicator cannot be used any more and sets the abort word, which ends its running
  // launches. Only the first reason counts.
  void Break(const std::string& why);
  bool Broken(std::string* why) const;
  void ThrowIfBroken() const;  // std::runtime_error
  // Describes a message that arrived damaged, or returns "". Nothing more arrives at that rank from that peer.
  std::string Damage() const;
  void SetDamage(const std::string& what);
  // Remembers what the call of a number (Args::Call::number) is. Described finds it by the number's low half; "" if
  // there is none.
  void Describe(uint32_t call, const std::string& what);
  std::string Described(uint64_t call) const;

 private:
  uint32_t* const abort_;
  mutable Mutex mutex_;
  std::string broken_ JAXRING_GUARDED_BY(mutex_);
  std::string damage_ JAXRING_GUARDED_BY(mutex_);
  std::map<uint16_t, std::string> calls_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring::cuda
