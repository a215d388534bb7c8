// A ring of message slots in memory that a sender and a receiver share: the one mechanism under every transport.
//
// Shared memory maps the same ring in two processes, TCP pumps one ring into another, ranks of one process share one on
// the heap. A slot carries its own flag (position + 1, stored last with release), so data and flag arrive together,
// slots may be filled and emptied out of order, and a small message costs one cache line. Two shapes of one ring are
// the two protocols: LL has many small slots whose first line holds header and payload, Simple few large ones with the
// payload on a line of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/mutex.h"
#include "base/store_choice.h"
#include "transport/core/doorbell.h"
#include "transport/core/shared_block_pool.h"

namespace jaxring {

class Faults;

enum class Protocol : uint8_t { kMemory = 0, kLL = 1, kSimple = 2 };

// Names one message: operation, sending rank, receiving rank, lane, and number within that flow.
struct MessageId {
  // The engines for CPUs and for GPUs share the links of a process: the lanes of the second one's messages begin here.
  static constexpr uint16_t kSecondEngine = 0x8000;
  uint64_t op;
  uint32_t src;
  uint32_t dst;
  uint16_t lane;
  uint16_t index;
  bool operator==(const MessageId& o) const {
    return op == o.op && src == o.src && dst == o.dst && lane == o.lane && index == o.index;
  }
};

struct RingShape {
  uint32_t slots;          // a power of two, at most 64
  uint32_t payload_bytes;  // per slot, a multiple of 64
  uint32_t payload_offset;
  size_t slot_stride() const { return (payload_offset + size_t{payload_bytes} + 63) / 64 * 64; }
  size_t bytes() const;
};

// Both sides of a link compute the same shapes from the same settings (BUFFSIZE, for Simple).
RingShape LLShape();
RingShape SimpleShape(uint32_t slot_bytes);

// What a message says besides its name.
struct Message {
  // Set in `bytes` where the slot holds only the number of the shared block in which the payload is.
  static constexpr uint32_t kInSharedBlock = uint32_t{1} << 31;
  uint32_t bytes = 0;
  uint32_t check = 0;     // what sender and receiver must agree on beyond the name; see Plan::check
  uint32_t checksum = 0;  // of the payload, where checksums are on
};

// MessageId and Message, without padding, as they stand before a payload.
struct MessageHeader {
  uint64_t op;
  uint32_t src, dst;
  uint16_t lane, index;
  uint32_t bytes, check, checksum;
  MessageHeader() = default;
  MessageHeader(const MessageId& id, const Message& message)
      : op(id.op),
        src(id.src),
        dst(id.dst),
        lane(id.lane),
        index(id.index),
        bytes(message.bytes),
        check(message.check),
        checksum(message.checksum) {}
  MessageId id() const { return {op, src, dst, lane, index}; }
  Message message() const { return {bytes, check, checksum}; }
};

struct SlotHeader {
  std::atomic<uint64_t> flag;
  MessageHeader header;
};
static_assert(sizeof(MessageHeader) == 32 && sizeof(SlotHeader) == 40);

struct RingControl {
  alignas(64) std::atomic<uint64_t> head;  // every position below is consumed; written by the receiver
  alignas(64) std::atomic<uint32_t> sender_waits;
};

// The slots and counters. It does not own the memory, which must be zero-filled at first.
class RingMemory {
 public:
  RingMemory() = default;
  RingMemory(void* base, RingShape shape)
      : base_(static_cast<char*>(base)), shape_(shape), stride_(shape.slot_stride()) {}
  RingControl& control() const { return *reinterpret_cast<RingControl*>(base_); }
  SlotHeader& header(uint64_t position) const { return *reinterpret_cast<SlotHeader*>(slot(position)); }
  char* payload(uint64_t position) const { return slot(position) + shape_.payload_offset; }
  const RingShape& shape() const { return shape_; }
  // The slot's bit in a mask of slots.
  uint64_t bit(uint64_t position) const { return uint64_t{1} << (position & (shape_.slots - 1)); }

 private:
  char* slot(uint64_t position) const {
    return base_ + sizeof(RingControl) + (position & (shape_.slots - 1)) * stride_;
  }
  char* base_ = nullptr;
  RingShape shape_{};
  size_t stride_ = 0;
};

// The sending side. Threads may use it together: a slot is reserved under the lock and filled outside it.
class RingSender {
 public:
  RingSender(RingMemory memory, Notifier* on_publish) : memory_(memory), on_publish_(on_publish) {}
  // Reserves a free slot. If there is none, returns false, and the receiver's next release notifies the sender's side.
  [[gnu::hot]] bool Reserve(uint64_t* position);
  char* payload(uint64_t position) const { return memory_.payload(position); }
  // A reserved slot must be published soon: the receiver does not look past an unpublished slot.
  [[gnu::hot]] void Publish(uint64_t position, const MessageId& id, Message message);
  // Publishes a message whose payload is in a shared block; the receiver drops one reference to that when it releases
  // the slot. The peer must have mapped this process's shared blocks.
  void PublishSharedBlock(uint64_t position, uint32_t block, const MessageId& id, Message message);
  const RingMemory& memory() const { return memory_; }
  // How payloads are to be written.
  StoreChoice& stores() { return stores_; }
  void set_on_publish(Notifier* notifier) { on_publish_ = notifier; }
  // Injects faults; before the first message. `faults` must outlive this.
  void set_faults(Faults* faults) { faults_ = faults; }

 private:
  [[gnu::hot]] void Put(uint64_t position, const MessageHeader& header);
  void PutFaulty(uint64_t position, MessageHeader header);

  RingMemory memory_;
  Notifier* on_publish_;
  Faults* faults_ = nullptr;
  StoreChoice stores_;
  Mutex mutex_;
  uint64_t tail_ JAXRING_GUARDED_BY(mutex_) = 0;
  uint64_t head_seen_ JAXRING_GUARDED_BY(mutex_) = 0;
};

// The receiving side. A message is claimed by name, in whichever slot it is, and released after it was read.
class RingReceiver {
 public:
  RingReceiver(RingMemory memory, Notifier* on_release) : memory_(memory), on_release_(on_release) {}
  [[gnu::hot]] bool Find(const MessageId& id, uint64_t* position, const char** payload, Message* message);
  // Claims the oldest unclaimed message, for a pump that forwards messages in order.
  bool FindNext(uint64_t* position, MessageId* id, const char** payload, Message* message);
  [[gnu::hot]] void Release(uint64_t position);
  // Undoes a claim without reading the message.
  void Unclaim(uint64_t position);
  // If the ring is full, hands every unclaimed message to `take(id, payload, message)` and frees its slot: messages
  // that nothing waits for yet must not block the ones behind them. With `patient` not before it is full at a second
  // such call with the same oldest message: until then somebody may be reading them.
  template <class Take>
  void SpillIfFull(Take take, bool patient = false);
  const RingMemory& memory() const { return memory_; }
  // The sender's shared blocks, which must outlive this; before the first message.
  void set_shared_blocks(SharedBlockPool* blocks) { shared_blocks_ = blocks; }

 private:
  // Claims the oldest unclaimed message, or the oldest of that name.
  [[gnu::hot]] bool Claim(const MessageId* wanted, uint64_t* position, const char** payload, Message* message);
  // The message at a position. Its length is at most that of a slot or shared block.
  [[gnu::hot]] Message Read(uint64_t position, const char** payload) const;
  // The shared block in which the payload is, or kBlocks if it is in the slot. Only called if the sender has any.
  [[gnu::hot]] uint32_t SharedBlock(uint64_t position) const;
  [[gnu::hot]] void ReleaseLocked(uint64_t position) JAXRING_REQUIRES(mutex_);

  RingMemory memory_;
  Notifier* on_release_;
  SharedBlockPool* shared_blocks_ = nullptr;
  Mutex mutex_;
  std::atomic<uint64_t> head_{0};  // written under the lock
  uint64_t claimed_ JAXRING_GUARDED_BY(mutex_) =
      0;  // a bit per slot: being read, or consumed while an older slot is not
  uint64_t consumed_ JAXRING_GUARDED_BY(mutex_) = 0;  // a bit per slot
  uint64_t full_end_ JAXRING_GUARDED_BY(mutex_) = 0;  // the end of the ring when a patient call has found it full
};

template <class Take>
void RingReceiver::SpillIfFull(Take take, bool patient) {
  MutexLock lock(mutex_);
  const uint32_t slots = memory_.shape().slots;
  uint64_t end = head_;
  while (end < head_ + slots && memory_.header(end).flag.load(std::memory_order_acquire) == end + 1) ++end;
  if (end < head_ + slots) return;
  if (patient && std::exchange(full_end_, end) != end) return;
  for (uint64_t p = head_; p < end; ++p) {
    const uint64_t bit = memory_.bit(p);
    // Freeing a slot may move the head past younger slots that were consumed before; their bits are cleared by then.
    if (p < head_ || (claimed_ & bit)) continue;
    const char* payload;
    const Message message = Read(p, &payload);
    take(memory_.header(p).header.id(), payload, message);
    claimed_ |= bit;
    ReleaseLocked(p);
  }
}

}  // namespace jaxring
