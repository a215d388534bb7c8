// Steps whose message holds several chunks, for all-to-alls: they gather chunks of a memory domain's ranks into one
// message, and spread a message over blocks of the outputs of such ranks. The chunks of a ragged collective differ in
// length. A message without a byte is not sent, and its receiver, which knows the lengths, does not wait for it.
#include "engine/operation/interpreter.h"
#include "engine/operation/pages.h"
#include "reduce/copy.h"

namespace jaxring {

bool Interpreter::Gather(Operation& op, Lane& lane, const Step& step) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  const uint32_t parts = step.recv_count * static_cast<uint32_t>(step.dst_chunk);
  auto part = [&](uint32_t k) {
    const int rank = Peer::rank(table.peers[step.recv_begin + k % step.recv_count]);
    const uint32_t local = static_cast<uint32_t>(plan.group.local_of_rank[rank]);
    const int32_t block = static_cast<int32_t>(k / step.recv_count);
    return op.Tile(local, Buffer::kInput, step.src_chunk + block * plan.shape.pieces, lane.tile);
  };
  size_t bytes = 0;
  for (uint32_t k = 0; k < parts; ++k) bytes += part(k).elements * plan.data.element_bytes;
  if (bytes == 0) return true;
  RingSender* ring;
  uint64_t position;
  SendLink* link = SendTo(op, lane, step.send_begin);
  if (link != nullptr && bytes > link->ring(plan.protocol).memory().shape().payload_bytes) {
    op.Fail(Status::Error(Code::kInternal, op.What() + ": its tiles are too long to be gathered into one message."));
    return false;
  }
  if (!Reserve(op, lane, step.send_begin, &ring, &position)) return false;
  ChosenWrite write(&ring->stores(), bytes);
  char* to = ring->payload(position);
  for (uint32_t k = 0; k < parts; ++k) {
    const Operation::Span from = part(k);
    const size_t length = from.elements * plan.data.element_bytes;
    if (length != 0) CopyBlock(to, from.data, length, write.streams());
    to += length;
  }
  if (write.streams()) StreamFence();
  write.End(2 * bytes);
  Publish(op, lane, step.send_begin, *ring, position, bytes);
  return true;
}

bool Interpreter::Spread(Operation& op, Lane& lane, const Step& step) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  const uint32_t blocks = static_cast<uint32_t>(step.src_chunk), parts = (1 + step.send_count) * blocks;
  uint32_t before = 0;  // memory peers of lower rank than this one
  while (before < step.send_count && Peer::rank(table.peers[step.send_begin + before]) < table.rank) ++before;
  auto local_of = [&](uint32_t k) {
    const uint32_t member = k / blocks;
    if (member == before) return lane.local;
    const int rank = Peer::rank(table.peers[step.send_begin + member - (member > before)]);
    return static_cast<uint32_t>(plan.group.local_of_rank[rank]);
  };
  auto part = [&](uint32_t k) {
    const int32_t block = static_cast<int32_t>(k % blocks);
    return op.Tile(local_of(k), Buffer::kOutput, step.dst_chunk + block * plan.shape.pieces, lane.tile);
  };
  size_t bytes = 0;
  for (uint32_t k = 0; k < parts; ++k) bytes += part(k).elements * plan.data.element_bytes;
  if (bytes == 0) return true;
  Claim claim;
  if (!Receive(op, lane, step.recv_begin, &claim)) return false;
  if (!Expect(op, table, Peer::rank(table.peers[step.recv_begin]), claim, bytes)) {
    Return(claim);
    return false;
  }
  const bool stream = plan.out_bytes() >= kStreamBytes;
  const char* from = claim.data;
  for (uint32_t k = 0; k < parts; ++k) {
    const Operation::Span into = part(k);
    const size_t length = into.elements * plan.data.element_bytes;
    if (length == 0) continue;
    const Destination to = Result(op.participant(local_of(k)), into, stream);
    if (to.fresh) PopulatePages(to.data, length);
    CopyBlock(to.data, from, length, to.stream);
    from += length;
  }
  if (stream) StreamFence();
  ++lane.flows[claim.flow].received;
  if (claim.ring != nullptr) claim.ring->Release(claim.position);
  return true;
}

}  // namespace jaxring
