// Steps whose message holds several chunks, for PXN: they gather the chunks of a memory domain's ranks into one
// message, and spread a message over blocks of the output.
#include <cstring>

#include "engine/operation/interpreter.h"
#include "engine/operation/pages.h"

namespace jaxring {

bool Interpreter::Gather(Operation& op, Lane& lane, const Step& step, uint64_t elements) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.locals[lane.local];
  const size_t part = elements * plan.element_bytes;
  RingSender* ring;
  uint64_t position;
  SendLink* link = SendTo(op, lane, step.send_begin);
  if (link != nullptr && part * step.recv_count > link->ring(plan.protocol).memory().shape().payload_bytes) {
    op.Fail(Status::Error(Code::kInternal, op.What() + ": its tiles are too long to be gathered into one message."));
    return false;
  }
  if (!Reserve(op, lane, step.send_begin, &ring, &position)) return false;
  char* to = ring->payload(position);
  for (uint32_t i = 0; i < step.recv_count; ++i, to += part) {
    const int rank = Peer::rank(table.peers[step.recv_begin + i]);
    const uint32_t local = static_cast<uint32_t>(plan.local_of_rank[rank]);
    std::memcpy(to, op.Tile(local, Buffer::kInput, step.src_chunk, lane.tile).data, part);
  }
  Publish(op, lane, step.send_begin, *ring, position, part * step.recv_count);
  return true;
}

bool Interpreter::Spread(Operation& op, Lane& lane, const Step& step, uint64_t elements) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.locals[lane.local];
  Claim claim;
  if (!Receive(op, lane, step.recv_begin, &claim)) return false;
  const size_t part = elements * plan.element_bytes, parts = static_cast<size_t>(step.src_chunk);
  if (!Expect(op, table, Peer::rank(table.peers[step.recv_begin]), claim, part * parts)) {
    Return(claim);
    return false;
  }
  for (size_t k = 0; k < parts; ++k) {
    const int32_t chunk = step.dst_chunk + static_cast<int32_t>(k * plan.pieces);
    void* to = op.Tile(lane.local, Buffer::kOutput, chunk, lane.tile).data;
    if (op.participant(lane.local).pages != Pages::kPresent) PopulatePages(to, part);
    std::memcpy(to, claim.data + k * part, part);
  }
  ++lane.flows[claim.flow].received;
  if (claim.ring != nullptr) claim.ring->Release(claim.position);
  return true;
}

}  // namespace jaxring
