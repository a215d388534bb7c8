// What the two pumps of an RDMA link do when it goes on over other ports: what has arrived, and what is sent again.
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "transport/verbs/verbs.h"

namespace jaxring {

bool VerbsSendPump::Awaits(bool ask, bool* awaits) {
  const bool good = Mark(ask || WaitsForCredit());
  *awaits = Waiting();
  return good;
}

bool VerbsSendPump::IsTrickling(Time now) {
  // Where a request that asks for its completion was under way the last time, and still is, the device was never idle.
  bool busy = false;
  int64_t under_way = 0;
  for (Queue& queue : queues_) {
    busy = busy || (!queue.sent.empty() && queue.sent.front().id <= queue.asked_before);
    queue.asked_before = queue.asked;
    for (const Sent& sent : queue.sent) under_way += BytesOf(sent);
  }
  busy_ = busy_ && busy;
  if (!trickle_.IsDue(now)) return false;
  return trickle_.Look(now, acked_, std::exchange(busy_, true), under_way);
}

std::string VerbsSendPump::Renew(const std::string& received, const verbs::Keys& own_keys) {
  std::istringstream words(received);
  std::array<std::set<uint64_t>, 2> unknown;  // positions that were sent, and whose arrival nobody has told of
  for (Queue& queue : queues_) {
    for (const Sent& sent : queue.sent) {
      if (sent.ring != nullptr) unknown[sent.ring == &rings_[1]].insert(sent.position);
    }
    queue.sent.clear();
    queue.unsignaled = 0;
    queue.asked_before = queue.asked = 0;
  }
  std::array<std::vector<uint64_t>, 2> missing;
  for (uint32_t protocol : {0, 1}) {
    Ring& ring = rings_[protocol];
    uint64_t head = 0, have = 0;
    if (!(words >> head >> have) || head < ring.peer_head || head > ring.next) {
      throw std::runtime_error("the peer says that it has received other messages than were sent");
    }
    ring.peer_head = head;
    const auto has = [head, have](uint64_t p) { return p < head || (have >> (p - head) & 1) != 0; };
    for (uint64_t position : unknown[protocol]) {
      if (has(position)) ring.reader.Release(position);
    }
    for (uint64_t position = head; position < ring.next; ++position) {
      if (has(position)) continue;
      if (unknown[protocol].count(position) == 0) {
        throw std::runtime_error("the peer's device has acknowledged a message and has not delivered it");
      }
      missing[protocol].push_back(position);
    }
  }
  std::string keys;
  std::getline(words, keys);
  peer_keys_ = verbs::ToKeys(keys);
  own_keys_ = own_keys;
  trickle_ = {};
  acked_ = 0;
  // Where the device refuses a request the endpoint fails, and the link ends.
  for (uint32_t protocol : {0, 1}) {
    for (uint64_t position : missing[protocol]) Write(rings_[protocol], protocol, position);
  }
  return "";
}

std::string VerbsRecvPump::Renew(const std::string&, const verbs::Keys& keys) {
  std::ostringstream words;
  credits_under_way_ = 0;
  for (Ring& ring : rings_) {
    const uint32_t slots = ring.memory.shape().slots;
    // Slots keep their flags when they have been read, so it does not matter whether others are read meanwhile.
    ring.credited = ring.memory.control().head.load(std::memory_order_acquire);
    uint64_t have = 0;
    for (uint64_t i = 0; i < slots; ++i) {
      const uint64_t position = ring.credited + i;
      have |= uint64_t{ring.memory.header(position).flag.load(std::memory_order_relaxed) == position + 1} << i;
    }
    words << ring.credited << ' ' << have << ' ';
  }
  words << verbs::ToText(keys);
  return words.str();
}

}  // namespace jaxring
