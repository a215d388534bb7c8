// A lane's messages: receives from its peers, and sends to them.
#include <cstdio>
#include <cstring>
#include <new>

#include "base/crc32c.h"
#include "engine/operation/interpreter.h"

namespace jaxring {

template <class Find>
auto Interpreter::LocalLink(Operation& op, const Lane& lane, Find find) -> decltype(find()) {
  try {
    return find();
  } catch (const std::bad_alloc& error) {
    op.Fail(Status::Error(Code::kResourceExhausted,
                          op.What() + ": " + op.plan().group.ranks[op.plan().group.locals[lane.local].rank].name +
                              " has no memory: " + error.what() + ". " + kMemoryHint));
    return nullptr;
  }
}

bool Interpreter::Receive(Operation& op, Lane& lane, uint32_t entry, Claim* claim) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  const int src = Peer::rank(table.peers[entry]);
  Flow& flow = lane.flows[table.flow[entry]];
  claim->flow = table.flow[entry];
  claim->id = {op.key(), static_cast<uint32_t>(src), static_cast<uint32_t>(table.rank), lane.number, flow.received};
  lane.waits_for = src;
  lane.waits_to_send = false;
  if (!flow.recv) {
    const RankPlace& peer = plan.group.ranks[src];
    const int channel = lane.number % plan.channels;
    const int device = plan.group.ranks[table.rank].device;
    flow.recv = peer.process == plan.group.process
                    ? LocalLink(op, lane, [&] { return links_->LocalRecv(peer.device, device, channel); })
                    : links_->Recv(peer.process, channel);
    if (!flow.recv) return false;
  }
  // Read before the ring: messages that a peer published before its link ended are still received.
  const bool closed = flow.recv->end.closed.load(std::memory_order_acquire);
  RingReceiver& ring = flow.recv->ring(plan.protocol);
  do {
    if (ring.Find(claim->id, &claim->position, &claim->data, &claim->message)) {
      claim->ring = &ring;
      return true;
    }
  } while (flow.recv->must_poll && flow.recv->notifier->Poll());
  if (unexpected_->Take(claim->id, &claim->unexpected)) {
    claim->data = claim->unexpected.data.data();
    claim->message = {static_cast<uint32_t>(claim->unexpected.data.size()), claim->unexpected.check,
                      claim->unexpected.checksum};
    return true;
  }
  if (closed) {
    op.Fail(loss_(op, table.rank, src, flow.recv->end));
  }
  return false;
}

bool Interpreter::Expect(Operation& op, const RankTable& table, int from, const Claim& claim, uint64_t bytes) {
  const Plan& plan = op.plan();
  if (claim.message.bytes == bytes && claim.message.check == plan.check) {
    const uint32_t found = checksums_ ? Crc32c(claim.data, bytes) : claim.message.checksum;
    if (found == claim.message.checksum) return true;
    char sums[64];
    std::snprintf(sums, sizeof sums, "%08x where %08x", found, claim.message.checksum);
    op.Fail(Status::Error(
        Code::kDataLoss, op.What() + ": a message arrived damaged: number " + std::to_string(claim.id.index) +
                             " of lane " + std::to_string(claim.id.lane) + ", " + std::to_string(bytes) +
                             " bytes from " + plan.group.ranks[from].name + " to " + plan.group.ranks[table.rank].name +
                             ", has checksum " + sums +
                             " was sent. Memory, a device or a driver on the way is at fault: check both hosts' "
                             "kernel logs. The job has to be restarted."));
    return false;
  }
  op.Fail(Status::Error(Code::kInvalidArgument,
                        op.What() + ": " + plan.group.ranks[table.rank].name + " expects " + std::to_string(bytes) +
                            " bytes from " + plan.group.ranks[from].name + ", which sent " +
                            std::to_string(claim.message.bytes) +
                            (claim.message.check != plan.check ? " of another shape or dtype." : ".") +
                            " The ranks disagree about the operation's shape or type, or run different programs."));
  return false;
}

void Interpreter::Return(Claim& claim) {
  if (claim.ring == nullptr) {
    unexpected_->Put(claim.id, std::move(claim.unexpected));
  } else {
    claim.ring->Unclaim(claim.position);
  }
}

SendLink* Interpreter::SendTo(Operation& op, Lane& lane, uint32_t entry) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  Flow& flow = lane.flows[table.flow[entry]];
  if (!flow.send) {
    const RankPlace& peer = plan.group.ranks[Peer::rank(table.peers[entry])];
    const int channel = lane.number % plan.channels;
    const int device = plan.group.ranks[table.rank].device;
    flow.send = peer.process == plan.group.process
                    ? LocalLink(op, lane, [&] { return links_->LocalSend(device, peer.device, channel); })
                    : links_->Send(peer.process, channel);
  }
  return flow.send.get();
}

bool Interpreter::Reserve(Operation& op, Lane& lane, uint32_t entry, RingSender** ring, uint64_t* position) {
  SendLink* link = SendTo(op, lane, entry);
  lane.waits_for = Peer::rank(op.plan().group.locals[lane.local].peers[entry]);
  lane.waits_to_send = true;
  if (link == nullptr) return false;
  *ring = &link->ring(op.plan().protocol);
  if (!link->end.closed.load(std::memory_order_acquire)) {
    if ((*ring)->Reserve(position)) return true;
    // The acknowledgement that frees a slot may have arrived at a transport that leaves polling to this thread.
    if (link->notifier && link->notifier->Poll() && (*ring)->Reserve(position)) return true;
  }
  if (link->end.closed.load(std::memory_order_acquire)) {
    op.Fail(loss_(op, op.plan().group.locals[lane.local].rank, lane.waits_for, link->end));
  }
  return false;
}

void Interpreter::Publish(Operation& op, Lane& lane, uint32_t entry, RingSender& ring, uint64_t position, size_t bytes,
                          bool in_shared_block) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  const MessageId id{op.key(), static_cast<uint32_t>(table.rank), static_cast<uint32_t>(Peer::rank(table.peers[entry])),
                     lane.number, lane.flows[table.flow[entry]].sent++};
  Message message{static_cast<uint32_t>(bytes), plan.check};
  if (plan.group.ranks[id.dst].process != plan.group.process) lane.sent_bytes += bytes;
  if (checksums_) message.checksum = Crc32c(in_shared_block ? lane.value : ring.payload(position), bytes);
  if (in_shared_block) {
    ring.PublishSharedBlock(position, static_cast<uint32_t>(lane.shared_block.index), id, message);
  } else {
    ring.Publish(position, id, message);
  }
}

bool Interpreter::TakeSharedBlock(Operation& op, Lane& lane, const Step& step, uint32_t messages) {
  const RankTable& table = op.plan().group.locals[lane.local];
  if (op.plan().protocol != Protocol::kSimple) return false;
  std::shared_ptr<SharedBlockPool> blocks;
  uint32_t readers = 0;
  for (uint32_t i = 0; i < step.send_count; ++i) {
    const uint32_t entry = step.send_begin + i;
    if (Peer::memory(table.peers[entry])) continue;
    SendLink* link = SendTo(op, lane, entry);
    if (link == nullptr || !link->shared_blocks) continue;
    blocks = link->shared_blocks;
    lane.shared_block.stores = &link->simple.stores();
    ++readers;
  }
  if (readers < 2) return false;
  lane.shared_block.index = blocks->Take(messages + 1);
  if (lane.shared_block.index < 0) return false;
  lane.shared_block.holds = messages + 1;
  lane.shared_block.pool = std::move(blocks);
  return true;
}

void Interpreter::LeaveSharedBlock(Lane& lane) {
  lane.shared_block.pool->Leave(lane.shared_block.index, lane.shared_block.holds);
  lane.shared_block.pool.reset();
  lane.shared_block.index = -1;
}

bool Interpreter::SendRest(Operation& op, Lane& lane, const Step& step, uint64_t elements) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  const size_t bytes =
      elements * ((step.flags & StepFlag::kSendPartial) ? plan.data.partial_bytes : plan.destination_bytes(step));
  for (; lane.sends_done < step.send_count; ++lane.sends_done) {
    const uint32_t entry = step.send_begin + lane.sends_done;
    if (Peer::memory(table.peers[entry])) continue;
    RingSender* ring;
    uint64_t position;
    if (!Reserve(op, lane, entry, &ring, &position)) return false;
    const bool in_shared_block =
        lane.shared_block.index >= 0 && lane.flows[table.flow[entry]].send->shared_blocks == lane.shared_block.pool;
    if (!in_shared_block) std::memcpy(ring->payload(position), lane.value, bytes);
    Publish(op, lane, entry, *ring, position, bytes, in_shared_block);
    if (in_shared_block) --lane.shared_block.holds;  // this reference is the receiver's now
  }
  if (lane.shared_block.index >= 0) LeaveSharedBlock(lane);
  return true;
}

}  // namespace jaxring
