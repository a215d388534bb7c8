// Executes lanes: advances a lane as far as arrived data and free slots allow. Never blocks, and never allocates per
// step in the steady state.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/operation/combine.h"
#include "engine/operation/operation.h"
#include "network/unexpected_messages.h"
#include "transport/core/links.h"

namespace jaxring {

enum class Progress { kBlocked, kMoved, kDone };

class Interpreter {
 public:
  // Makes the failure of an operation in which rank `self` waits for rank `peer`, whose link has ended.
  using Loss = std::function<Status(const Operation& op, int self, int peer, const LinkEnd& end)>;
  // With `checksums` every message carries a checksum of its payload, which the receiver checks.
  Interpreter(Links* links, UnexpectedMessages* unexpected, Loss loss, bool checksums)
      : links_(links), unexpected_(unexpected), loss_(std::move(loss)), checksums_(checksums) {}
  // The caller holds the lane's busy flag. Executes `budget` steps at most, so that one lane cannot starve the others.
  [[gnu::hot]] Progress Advance(Operation& op, Lane& lane, int budget);

 private:
  struct Claim {
    RingReceiver* ring = nullptr;  // nullptr: the data came from the unexpected-message queue
    uint64_t position = 0;
    const char* data = nullptr;
    Message message;
    UnexpectedMessages::Entry unexpected;
    MessageId id{};
    uint32_t flow = 0;
  };
  struct Workspace;

  // Operations with results of this size or more write them with non-temporal stores. The memory of an older result is
  // not in the caches any more, and ordinary stores would read it into them first. Measured with 2 to 8 ranks on 2
  // cores, at 2 and 4 MiB: 1.0 to 2.4 times as fast, and 0.9 to 1.6 times if the program reads the result at once.
  static constexpr uint64_t kStreamBytes = 2u << 20;
  // A tile of a result in memory. Fresh small pages have just been cleared in the caches, so non-temporal stores to
  // them would only be slower.
  static Destination Result(const Participant& participant, Operation::Span tile, bool stream);

  [[gnu::hot]] bool TryStep(Operation& op, Lane& lane, const Step& step);
  [[gnu::hot]] bool Make(Operation& op, Lane& lane, const Step& step, uint64_t elements, uint32_t message_sends);
  // Takes a shared block for the value of a step with so many messages, if several of the receivers can read it. True
  // if the lane holds one from now on.
  bool TakeSharedBlock(Operation& op, Lane& lane, const Step& step, uint32_t messages);
  static void LeaveSharedBlock(Lane& lane);
  [[gnu::hot]] bool SendRest(Operation& op, Lane& lane, const Step& step, uint64_t elements);
  [[gnu::hot]] bool Receive(Operation& op, Lane& lane, uint32_t peer_entry, Claim* claim);
  // Whether a message has the length, shape and checksum that the step expects of rank `from`; otherwise fails the
  // operation.
  [[gnu::hot]] bool Expect(Operation& op, const RankTable& table, int from, const Claim& claim, uint64_t bytes);
  // Steps whose message holds several chunks.
  bool Gather(Operation& op, Lane& lane, const Step& step);
  bool Spread(Operation& op, Lane& lane, const Step& step);
  void Return(Claim& claim);
  [[gnu::hot]] SendLink* SendTo(Operation& op, Lane& lane, uint32_t peer_entry);
  [[gnu::hot]] bool Reserve(Operation& op, Lane& lane, uint32_t peer_entry, RingSender** ring, uint64_t* position);
  // Publishes the next message to a peer from the slot that was reserved for it, or from the lane's shared block.
  [[gnu::hot]] void Publish(Operation& op, Lane& lane, uint32_t peer_entry, RingSender& ring, uint64_t position,
                            size_t bytes, bool in_shared_block = false);

  // Resizes a lane's memory, or fails the operation.
  bool Enlarge(Operation& op, const Lane& lane, std::vector<char>* memory, size_t bytes, const char* what);
  // A link between ranks of this process, made at its first use. If there is no memory for it, fails the operation and
  // returns nullptr.
  template <class Find>
  auto LocalLink(Operation& op, const Lane& lane, Find find) -> decltype(find());

  Links* links_;
  UnexpectedMessages* unexpected_;
  Loss loss_;
  const bool checksums_;
};

}  // namespace jaxring
