#include "transport/core/ring.h"

#include <algorithm>
#include <cstring>

#include "transport/core/faults.h"

namespace jaxring {

size_t RingShape::bytes() const { return sizeof(RingControl) + slots * slot_stride(); }

RingShape LLShape() { return {32, 4096, sizeof(SlotHeader)}; }

RingShape SimpleShape(uint32_t slot_bytes) { return {8, slot_bytes, 64}; }

bool RingSender::Reserve(uint64_t* position) {
  MutexLock lock(mutex_);
  const uint32_t slots = memory_.shape().slots;
  if (tail_ - head_seen_ >= slots) {
    head_seen_ = memory_.control().head.load(std::memory_order_acquire);
    if (tail_ - head_seen_ >= slots) {
      // Sets sender_waits, then reads head again. The receiver stores head before it reads sender_waits, so one of the
      // two sees the other's store.
      memory_.control().sender_waits.store(1, std::memory_order_seq_cst);
      head_seen_ = memory_.control().head.load(std::memory_order_seq_cst);
      if (tail_ - head_seen_ >= slots) return false;
    }
  }
  *position = tail_++;
  return true;
}

void RingSender::Publish(uint64_t position, const MessageId& id, Message message) {
  const MessageHeader header(id, message);
  if (faults_ != nullptr) [[unlikely]]
    return PutFaulty(position, header);
  Put(position, header);
}

void RingSender::Put(uint64_t position, const MessageHeader& header) {
  SlotHeader& slot = memory_.header(position);
  slot.header = header;
  slot.flag.store(position + 1, std::memory_order_release);
  if (on_publish_ != nullptr) on_publish_->Notify();
}

void RingSender::PublishSharedBlock(uint64_t position, uint32_t block, const MessageId& id, Message message) {
  std::memcpy(payload(position), &block, sizeof block);
  message.bytes |= Message::kInSharedBlock;
  Put(position, MessageHeader(id, message));
}

void RingSender::PutFaulty(uint64_t position, MessageHeader header) {
  constexpr uint64_t kNoOperation = ~uint64_t{0};
  const auto [fault, random] = faults_->Next();
  char* const data = payload(position);
  const MessageHeader intact = header;
  uint64_t again = 0;
  bool twice = false;
  switch (fault) {
    case Fault::kDrop:
      header.op = kNoOperation;  // the slot must be published, or the receiver would not look past it
      break;
    case Fault::kTruncate:
      header.bytes = header.bytes == 0 ? 0 : static_cast<uint32_t>(random % header.bytes);
      break;
    case Fault::kCorrupt: {
      // A bit of the payload or of the header.
      const uint64_t bit = random % (8 * (sizeof header + header.bytes));
      char* at = bit / 8 < sizeof header ? reinterpret_cast<char*>(&header) + bit / 8 : data + bit / 8 - sizeof header;
      *at ^= static_cast<char>(1 << bit % 8);
      break;
    }
    case Fault::kDuplicate:
      twice = Reserve(&again);
      if (twice) std::memcpy(payload(again), data, header.bytes);
      break;
    default:
      break;
  }
  header.bytes = std::min(header.bytes, memory_.shape().payload_bytes);  // pumps trust their own lanes
  Put(position, header);
  if (twice) Put(again, intact);
}

uint32_t RingReceiver::SharedBlock(uint64_t position) const {
  if (!(memory_.header(position).header.bytes & Message::kInSharedBlock)) return SharedBlockPool::kBlocks;
  uint32_t block;
  std::memcpy(&block, memory_.payload(position), sizeof block);
  return std::min(block, SharedBlockPool::kBlocks);
}

Message RingReceiver::Read(uint64_t position, const char** payload) const {
  Message message = memory_.header(position).header.message();
  *payload = memory_.payload(position);
  if (shared_blocks_ != nullptr) {
    if (const uint32_t block = SharedBlock(position); block < SharedBlockPool::kBlocks) {
      message.bytes &= ~Message::kInSharedBlock;
      *payload = shared_blocks_->data(block);
    }
  }
  // Oversized length: treat the message as empty; no receiver will accept it.
  if (message.bytes > memory_.shape().payload_bytes) message.bytes = 0;
  return message;
}

bool RingReceiver::Find(const MessageId& id, uint64_t* position, const char** payload, Message* message) {
  return Claim(&id, position, payload, message);
}

bool RingReceiver::FindNext(uint64_t* position, MessageId* id, const char** payload, Message* message) {
  if (!Claim(nullptr, position, payload, message)) return false;
  *id = memory_.header(*position).header.id();
  return true;
}

bool RingReceiver::Claim(const MessageId* wanted, uint64_t* position, const char** payload, Message* message) {
  // Polling threads take no lock while the ring is empty. `oldest` may be outdated; then the flag is from a later round
  // of the ring, this returns false, and the sender that has filled the slot rings the doorbell afterwards.
  const uint64_t oldest = head_.load(std::memory_order_relaxed);
  if (memory_.header(oldest).flag.load(std::memory_order_acquire) != oldest + 1) return false;
  MutexLock lock(mutex_);
  const uint32_t slots = memory_.shape().slots;
  const uint64_t head = head_.load(std::memory_order_relaxed);
  for (uint64_t p = head; p < head + slots; ++p) {
    SlotHeader& slot = memory_.header(p);
    if (slot.flag.load(std::memory_order_acquire) != p + 1) return false;
    const uint64_t bit = memory_.bit(p);
    if ((claimed_ & bit) || (wanted != nullptr && !(slot.header.id() == *wanted))) continue;
    claimed_ |= bit;
    *position = p;
    *message = Read(p, payload);
    return true;
  }
  return false;
}

void RingReceiver::Release(uint64_t position) {
  MutexLock lock(mutex_);
  ReleaseLocked(position);
}

void RingReceiver::Unclaim(uint64_t position) {
  MutexLock lock(mutex_);
  claimed_ &= ~memory_.bit(position);
}

void RingReceiver::ReleaseLocked(uint64_t position) {
  if (shared_blocks_ != nullptr) {
    if (const uint32_t block = SharedBlock(position); block < SharedBlockPool::kBlocks) shared_blocks_->Leave(block, 1);
  }
  consumed_ |= memory_.bit(position);
  const uint64_t before = head_.load(std::memory_order_relaxed);
  uint64_t head = before;
  while (consumed_ & memory_.bit(head)) {
    const uint64_t bit = memory_.bit(head);
    consumed_ &= ~bit;
    claimed_ &= ~bit;
    ++head;
  }
  if (head == before) return;
  head_.store(head, std::memory_order_relaxed);
  RingControl& control = memory_.control();
  control.head.store(head, std::memory_order_seq_cst);
  if (control.sender_waits.load(std::memory_order_seq_cst) != 0 &&
      control.sender_waits.exchange(0, std::memory_order_seq_cst) != 0 && on_release_ != nullptr) {
    on_release_->Notify();
  }
}

}  // namespace jaxring
