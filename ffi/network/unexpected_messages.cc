#include "network/unexpected_messages.h"

namespace jaxring {

void UnexpectedMessages::Put(const MessageId& id, Entry message) {
  std::lock_guard lock(mutex_);
  if (discarded_.count(id.op) != 0) return;
  const size_t bytes = message.data.size();
  messages_[id] = std::move(message);
  bytes_ += bytes;
  ++count_;
}

bool UnexpectedMessages::Take(const MessageId& id, Entry* message) {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard lock(mutex_);
  auto it = messages_.find(id);
  if (it == messages_.end()) return false;
  *message = std::move(it->second);
  messages_.erase(it);
  bytes_ -= message->data.size();
  --count_;
  return true;
}

void UnexpectedMessages::Discard(uint64_t op) {
  std::lock_guard lock(mutex_);
  discarded_.insert(op);
  for (auto it = messages_.begin(); it != messages_.end();) {
    if (it->first.op == op) {
      bytes_ -= it->second.data.size();
      --count_;
      it = messages_.erase(it);
    } else {
      ++it;
    }
  }
}

void UnexpectedMessages::Clear() {
  std::lock_guard lock(mutex_);
  messages_.clear();
  discarded_.clear();
  bytes_ = count_ = 0;
}

}  // namespace jaxring
