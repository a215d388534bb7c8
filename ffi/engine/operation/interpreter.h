// Plays lanes: takes a lane as far as data and room allow. Never blocks, never allocates per step in the steady state.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/operation/operation.h"
#include "engine/operation/unexpected_messages.h"
#include "transport/core/links.h"

namespace jaxring {

enum class Progress { kBlocked, kMoved, kDone };

class Interpreter {
 public:
  // The failure of an operation in which rank `self` waits for rank `peer`, whose link has ended.
  using Loss = std::function<Status(const Operation& op, int self, int peer, const LinkEnd& end)>;
  // `checksums`: every message gets one of its payload, and is refused if it does not fit.
  Interpreter(Links* links, UnexpectedMessages* unexpected, Loss loss, bool checksums)
      : links_(links), unexpected_(unexpected), loss_(std::move(loss)), checksums_(checksums) {}
  // The caller holds the lane's busy flag. `budget` steps at most, so one lane cannot starve the others.
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

  [[gnu::hot]] bool TryStep(Operation& op, Lane& lane, const Step& step);
  [[gnu::hot]] bool Make(Operation& op, Lane& lane, const Step& step, uint64_t elements, uint32_t message_sends);
  // A block for the value of a step with so many messages, where several of their receivers can read one. True if the
  // lane holds one from now on.
  bool TakeBlock(Operation& op, Lane& lane, const Step& step, uint32_t messages);
  static void LeaveBlock(Lane& lane);
  [[gnu::hot]] bool SendRest(Operation& op, Lane& lane, const Step& step, uint64_t elements);
  [[gnu::hot]] bool Receive(Operation& op, Lane& lane, uint32_t peer_entry, Claim* claim);
  // Whether a message is what the step expects of rank `from`; otherwise the operation has failed.
  [[gnu::hot]] bool Expect(Operation& op, const RankTable& table, int from, const Claim& claim, uint64_t bytes);
  // Steps with a message of several chunks.
  bool Gather(Operation& op, Lane& lane, const Step& step, uint64_t elements);
  bool Spread(Operation& op, Lane& lane, const Step& step, uint64_t elements);
  void Return(Claim& claim);
  [[gnu::hot]] SendLink* SendTo(Operation& op, Lane& lane, uint32_t peer_entry);
  [[gnu::hot]] bool Reserve(Operation& op, Lane& lane, uint32_t peer_entry, RingSender** ring, uint64_t* position);
  // The slot that was reserved for a peer holds the next message to it, unless that lies in the lane's block.
  [[gnu::hot]] void Publish(Operation& op, Lane& lane, uint32_t peer_entry, RingSender& ring, uint64_t position,
                            size_t bytes, bool in_block = false);

  // Gives a lane memory, or fails the operation.
  bool Enlarge(Operation& op, const Lane& lane, std::vector<char>* memory, size_t bytes, const char* what);
  // A link between ranks of this process, which is made at its first use; nullptr, and the operation has failed, where
  // there is no memory for it.
  template <class Find>
  auto LocalLink(Operation& op, const Lane& lane, Find find) -> decltype(find());

  Links* links_;
  UnexpectedMessages* unexpected_;
  Loss loss_;
  const bool checksums_;
};

}  // namespace jaxring
