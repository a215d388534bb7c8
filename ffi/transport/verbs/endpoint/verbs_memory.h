// The memory that an endpoint has registered with its device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/core/direct_memory.h"
#include "transport/verbs/endpoint/verbs_port.h"

namespace jaxring::verbs {

// What the library destroys by a function of its own.
template <class T>
using Handle = std::unique_ptr<T, int (*)(T*)>;

// A link's memory, and more that is written directly. It must outlive this object.
class Memory {
 public:
  // `written`: the peer writes it; otherwise the device only reads it. Throws std::runtime_error.
  Memory(const Port& port, bool written, char* memory, size_t bytes);
  Pd* pd() const { return pd_.get(); }
  uint32_t lkey() const { return memory_->lkey; }
  uint32_t rkey() const { return memory_->rkey; }
  // Registers more. Returns the key by which this device reads it, or the peer writes it. Any thread may call it.
  // Throws std::runtime_error.
  uint32_t Add(const DirectRegion& region);

 private:
  const Port& port_;
  const bool written_;
  Handle<Pd> pd_;
  Handle<Mr> memory_;
  Mutex more_mutex_;
  std::vector<Handle<Mr>> more_ JAXRING_GUARDED_BY(more_mutex_);
};

// Receive queue entries of a queue pair.
constexpr uint32_t kNotices = 64;

// The buffers of iWARP's notices, which have no immediate data.
class NoticeBuffers {
 public:
  // Throws std::runtime_error.
  NoticeBuffers(const Port& port, Pd* pd);
  // Where an entry of a queue pair's receive queue gets a notice, and what it has got.
  Sge Place(int queue_pair, uint32_t slot) { return At(Received(queue_pair, slot)); }
  uint32_t Notice(int queue_pair, uint32_t slot) { return *Received(queue_pair, slot); }
  // A notice to be sent. Its buffer is reused after kNotices others.
  Sge Send(uint32_t notice) {
    uint32_t* word = words_->data() + kMaxQueuePairs * kNotices + next_++ % kNotices;
    *word = notice;
    return At(word);
  }

 private:
  uint32_t* Received(int queue_pair, uint32_t slot) { return words_->data() + queue_pair * kNotices + slot; }
  Sge At(uint32_t* word) const { return {reinterpret_cast<uint64_t>(word), sizeof *word, registered_->lkey}; }

  // The received ones by queue pair and entry, then those that are sent.
  std::unique_ptr<std::array<uint32_t, (kMaxQueuePairs + 1) * kNotices>> words_;
  Handle<Mr> registered_;
  uint32_t next_ = 0;
};

}  // namespace jaxring::verbs
