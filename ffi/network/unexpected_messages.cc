#include "network/unexpected_messages.h"

#include <new>
#include <utility>

namespace jaxring {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;

}  // namespace

void UnexpectedMessages::Put(const MessageId& id, Entry message) {
  MutexLock lock(mutex_);
  if (discarded_.count(id.op) != 0) return;
  const size_t bytes = message.data.size();
  messages_[id] = std::move(message);
  bytes_ += bytes;
  ++count_;
}

bool UnexpectedMessages::Take(const MessageId& id, Entry* message) {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(mutex_);
  auto it = messages_.find(id);
  if (it == messages_.end()) return false;
  *message = std::move(it->second);
  messages_.erase(it);
  bytes_ -= message->data.size();
  --count_;
  return true;
}

uint64_t UnexpectedMessages::TakeOver(const Links& links, bool patient) {
  uint64_t taken = 0;
  // Over the budget, messages stay in the ring and hold their sender back. An operation that then cannot proceed fails
  // at its deadline.
  if (bytes() > kMaxBytes) return taken;
  for (auto& link : links.AllRecv()) {
    for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      try {
        link->ring(protocol).SpillIfFull(
            [&](const MessageId& id, const char* data, Message message) {
              Put(id, {message.check, message.checksum, std::vector<char>(data, data + message.bytes)});
              ++taken;
            },
            patient);
      } catch (const std::bad_alloc&) {
        return taken;  // out of memory: as over the budget
      }
    }
  }
  return taken;
}

void UnexpectedMessages::Discard(uint64_t op) {
  MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
  messages_.clear();
  discarded_.clear();
  bytes_ = count_ = 0;
}

}  // namespace jaxring
