// A communicator's connections: slots and counters of two ranks, by memory or over the network.
#include "cuda/host/group/communicator.h"

namespace jaxring::cuda {
namespace {

// The counters of one lane of a wire: what this rank waits for as a sender, on a cache line of its own, and as a
// receiver, one for each slot.
constexpr uint64_t kCreditAt = 0, kArrivedAt = kLineBytes;
uint64_t CountersEnd(const WireShape& shape) { return kArrivedAt + SlotCountersBytes(shape.slots); }

}  // namespace

Location Communicator::OfferWire(int rank, int peer, Protocol protocol) {
  Local& here = At(rank);
  const WireShape shape = ranks_.spec().wires[static_cast<int>(protocol)];
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.memory == nullptr) {
    wire.memory = memory_.New(rank, ranks_.spec().lanes * (shape.slots * shape.slot_bytes + CountersEnd(shape)));
    wire.offered =
        ranks_.local(peer) ? Location{0, reinterpret_cast<uint64_t>(wire.memory)} : memory_.Offer(rank, wire.memory, 1);
  }
  return wire.offered;
}

void Communicator::ConnectWire(int rank, int peer, Protocol protocol, Location theirs) {
  Local& here = At(rank);
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.connected) return;
  if (wire.memory == nullptr) {
    throw std::runtime_error(ranks_.spec().name + ": rank " + std::to_string(rank) + " connects to rank " +
                             std::to_string(peer) + " before it has offered its memory");
  }
  const WireShape shape = ranks_.spec().wires[static_cast<int>(protocol)];
  const uint64_t area = shape.slots * shape.slot_bytes, counters = ranks_.spec().lanes * area;
  char* far = memory_.Resolve(rank, peer, theirs);
  for (uint32_t lane = 0; lane < ranks_.spec().lanes; ++lane) {
    Connection connection{};
    connection.send_slots = far + lane * area;
    connection.recv_slots = wire.memory + lane * area;
    char* ours = wire.memory + counters + lane * CountersEnd(shape);
    char* others = far + counters + lane * CountersEnd(shape);
    connection.credit = reinterpret_cast<uint64_t*>(ours + kCreditAt);
    connection.give = reinterpret_cast<uint64_t*>(others + kCreditAt);
    if (protocol == Protocol::kSimple) {
      connection.arrived = reinterpret_cast<uint64_t*>(ours + kArrivedAt);
      connection.tail = reinterpret_cast<uint64_t*>(others + kArrivedAt);
    }
    connection.peer = peer;
    gpu_.memory.Copy(here.device, here.own + ConnectionIndex(protocol, lane, peer) * sizeof(Connection), &connection,
                     sizeof connection);
  }
  wire.connected = true;
}

std::string Communicator::ConnectNetwork(int rank, int peer, Protocol protocol) {
  Local& here = At(rank);
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.connected) return "";
  if (proxy_ == nullptr) {
    throw std::runtime_error(ranks_.spec().name + ": no proxy thread carries messages to " + ranks_[peer].name);
  }
  if (!GoesOverNetwork(protocol)) {
    throw std::runtime_error(ranks_.spec().name +
                             ": a protocol whose lines must arrive whole cannot be used over the network, which "
                             "connects the ranks " +
                             std::to_string(rank) + " and " + std::to_string(peer));
  }
  const WireShape shape = ranks_.spec().wires[static_cast<int>(protocol)];
  ProxySpec spec;
  spec.name = ranks_.hash() + static_cast<uint64_t>(protocol);
  spec.src = rank;
  spec.dst = peer;
  spec.process = ranks_.local(peer) ? ProxySpec::kHere : ranks_[peer].process;
  spec.device = here.device;
  spec.lanes = ranks_.spec().lanes;
  spec.slots = shape.slots;
  spec.slot_bytes = shape.slot_bytes;
  spec.counts = protocol == Protocol::kSimple;
  spec.where = "at " + ranks_[rank].name + " from " + ranks_[peer].name;
  spec.broken = [this](const std::string& why) { health_.SetDamage(ranks_.spec().name + ": " + why); };
  std::string how;
  std::vector<Connection> connections = proxy_->Connect(spec, &how);
  for (uint32_t lane = 0; lane < ranks_.spec().lanes; ++lane) {
    connections[lane].peer = peer;
    gpu_.memory.Copy(here.device, here.own + ConnectionIndex(protocol, lane, peer) * sizeof(Connection),
                     &connections[lane], sizeof(Connection));
  }
  wire.connected = true;
  return how;
}

bool Communicator::Connected(int rank, int peer, Protocol protocol) {
  auto& wires = At(rank).wires;
  auto it = wires.find({peer, static_cast<int>(protocol)});
  return it != wires.end() && it->second.connected;
}

}  // namespace jaxring::cuda
