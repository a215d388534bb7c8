// Fault injection for tests. Some messages are dropped, delayed, duplicated, truncated or get a flipped bit. On
// sockets, where a write is as a rule one message, writes are also reordered and connections reset. The choice depends
// on a seed, the link and the message's number only, so a run can be repeated as far as thread timing allows.
//
// Without faults this costs one null-pointer check per message, in RingSender::Publish, and nothing on sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "transport/core/stream.h"

namespace jaxring {

enum class Fault : uint8_t { kNone, kDrop, kDelay, kDuplicate, kTruncate, kCorrupt, kReorder, kReset };

struct FaultPlan {
  uint64_t seed = 0;
  // Each fault's share of the messages. A message has at most one.
  double drop = 0, delay = 0, duplicate = 0, truncate = 0, corrupt = 0;
  double reorder = 0, reset = 0;  // sockets only
  double delay_us = 1000;         // the longest delay; the sending thread sleeps for it
  double data_only = 0;           // 1: control connections have no faults
  // Keys are the names of these fields. Throws std::invalid_argument for any other.
  static FaultPlan From(const std::map<std::string, double>& numbers);
  bool any() const { return drop + delay + duplicate + truncate + corrupt + reorder + reset > 0; }
};

// The faults of one direction of one link.
class Faults {
 public:
  Faults(const FaultPlan& plan, uint64_t link) : plan_(plan), link_(link) {}
  struct Choice {
    Fault fault;
    uint64_t random;  // chooses the place in the message
  };
  // The fault of the next message. A delay is over when this returns. Any thread may call it.
  Choice Next();
  // How many faults this process has injected.
  static uint64_t injected() { return injected_.load(std::memory_order_relaxed); }

 private:
  const FaultPlan plan_;
  const uint64_t link_;
  std::atomic<uint64_t> count_{0};
  inline static std::atomic<uint64_t> injected_{0};
};

// A connection with faults in its writes.
class FaultyStream final : public Stream {
 public:
  FaultyStream(std::unique_ptr<Stream> inner, const FaultPlan& plan, uint64_t link)
      : Stream(-1), inner_(std::move(inner)), faults_(plan, link) {}
  int fd() const override { return inner_->fd(); }
  ssize_t Write(const iovec* parts, int count) override;
  ssize_t Read(void* to, size_t bytes) override { return inner_->Read(to, bytes); }
  bool Flush() override { return inner_->Flush(); }
  bool holds_bytes() const override { return inner_->holds_bytes(); }
  std::string Why() const override { return inner_->Why(); }
  bool given_up() const override { return inner_->given_up(); }

 private:
  std::unique_ptr<Stream> inner_;
  Faults faults_;
  std::string held_;  // a reordered write: sent after the next one
};

// The `link` of the constructors above: each connection of a process has faults of its own.
inline uint64_t FaultsOf(int process, int channel) {
  return static_cast<uint64_t>(process) << 16 | static_cast<uint64_t>(channel);
}

// Wraps a connection in a FaultyStream if the plan has any faults.
std::unique_ptr<Stream> WithFaults(std::unique_ptr<Stream> stream, const FaultPlan& plan, uint64_t link);

}  // namespace jaxring
