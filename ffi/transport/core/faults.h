// Faults on purpose, for tests: some of the messages are dropped, delayed, repeated, cut, or get a wrong bit; some of
// the writes to a socket, which as a rule are one message each, also swapped, and some connections broken. Which ones
// is a function of a seed, the link and the message's number, so a run can be had again as far as threads allow.
//
// Off, it costs a null pointer's look per message, in RingSender::Publish, and nothing at all on sockets.
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
  // Each fault's share of the messages; at most one befalls a message.
  double drop = 0, delay = 0, duplicate = 0, truncate = 0, corrupt = 0;
  double reorder = 0, reset = 0;  // sockets only
  double delay_us = 1000;         // the longest delay, which whoever sends sits out
  double data_only = 0;           // 1: the connections beside the data are spared
  // By these names; throws std::invalid_argument for another one.
  static FaultPlan From(const std::map<std::string, double>& numbers);
  bool any() const { return drop + delay + duplicate + truncate + corrupt + reorder + reset > 0; }
};

// The faults of one direction of one link.
class Faults {
 public:
  Faults(const FaultPlan& plan, uint64_t link) : plan_(plan), link_(link) {}
  struct Choice {
    Fault fault;
    uint64_t random;  // says where
  };
  // What befalls the next message. A delay has passed when this returns. Any thread.
  Choice Next();
  // Those of this process so far.
  static uint64_t injected() { return injected_.load(std::memory_order_relaxed); }

 private:
  const FaultPlan plan_;
  const uint64_t link_;
  std::atomic<uint64_t> count_{0};
  inline static std::atomic<uint64_t> injected_{0};
};

// A connection whose writes suffer.
class FaultyStream final : public Stream {
 public:
  FaultyStream(std::unique_ptr<Stream> inner, const FaultPlan& plan, uint64_t link)
      : Stream(-1), inner_(std::move(inner)), faults_(plan, link) {}
  int fd() const override { return inner_->fd(); }
  ssize_t Write(const iovec* parts, int count) override;
  ssize_t Read(void* to, size_t bytes) override { return inner_->Read(to, bytes); }
  bool holds_bytes() const override { return inner_->holds_bytes(); }
  std::string Why() const override { return inner_->Why(); }

 private:
  std::unique_ptr<Stream> inner_;
  Faults faults_;
  std::string held_;  // goes after the next write
};

// Wraps a connection if the plan has any faults.
std::unique_ptr<Stream> WithFaults(std::unique_ptr<Stream> stream, const FaultPlan& plan, uint64_t link);

}  // namespace jaxring
