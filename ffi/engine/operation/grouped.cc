// Steps whose message holds several chunks, for PXN: they gather the chunks of a memory domain's ranks into one
// message, and spread a message over blocks of the output. The chunks of a ragged collective differ in length. A
// message without a byte is not sent, and its receiver, which knows the lengths, does not wait for it.
#include <cstring>

#include "engine/operation/interpreter.h"
#include "engine/operation/pages.h"

namespace jaxring {

bool Interpreter::Gather(Operation& op, Lane& lane, const Step& step) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  auto part = [&](uint32_t i) {
    const int rank = Peer::rank(table.peers[step.recv_begin + i]);
    const uint32_t local = static_cast<uint32_t>(plan.group.local_of_rank[rank]);
    return op.Tile(local, Buffer::kInput, step.src_chunk, lane.tile);
  };
  size_t bytes = 0;
  for (uint32_t i = 0; i < step.recv_count; ++i) bytes += part(i).elements * plan.data.element_bytes;
  if (bytes == 0) return true;
  RingSender* ring;
  uint64_t position;
  SendLink* link = SendTo(op, lane, step.send_begin);
  if (link != nullptr && bytes > link->ring(plan.protocol).memory().shape().payload_bytes) {
    op.Fail(Status::Error(Code::kInternal, op.What() + ": its tiles are too long to be gathered into one message."));
    return false;
  }
  if (!Reserve(op, lane, step.send_begin, &ring, &position)) return false;
  char* to = ring->payload(position);
  for (uint32_t i = 0; i < step.recv_count; ++i) {
    const Operation::Span from = part(i);
    const size_t length = from.elements * plan.data.element_bytes;
    if (length != 0) std::memcpy(to, from.data, length);
    to += length;
  }
  Publish(op, lane, step.send_begin, *ring, position, bytes);
  return true;
}

bool Interpreter::Spread(Operation& op, Lane& lane, const Step& step) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  const int32_t parts = step.src_chunk;
  auto part = [&](int32_t k) {
    return op.Tile(lane.local, Buffer::kOutput, step.dst_chunk + k * plan.shape.pieces, lane.tile);
  };
  size_t bytes = 0;
  for (int32_t k = 0; k < parts; ++k) bytes += part(k).elements * plan.data.element_bytes;
  if (bytes == 0) return true;
  Claim claim;
  if (!Receive(op, lane, step.recv_begin, &claim)) return false;
  if (!Expect(op, table, Peer::rank(table.peers[step.recv_begin]), claim, bytes)) {
    Return(claim);
    return false;
  }
  const char* from = claim.data;
  for (int32_t k = 0; k < parts; ++k) {
    const Operation::Span to = part(k);
    const size_t length = to.elements * plan.data.element_bytes;
    if (length == 0) continue;
    if (op.participant(lane.local).pages != Pages::kPresent) PopulatePages(to.data, length);
    std::memcpy(to.data, from, length);
    from += length;
  }
  ++lane.flows[claim.flow].received;
  if (claim.ring != nullptr) claim.ring->Release(claim.position);
  return true;
}

}  // namespace jaxring
