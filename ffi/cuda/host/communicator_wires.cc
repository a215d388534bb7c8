// A communicator's connections (slots and counters of two ranks, by memory or over the network) and staging buffers.
#include "cuda/host/communicator.h"

namespace jaxring::cuda {
namespace {

// The counters of one lane of a wire: what this rank waits for as a sender, on a cache line of its own, and as a
// receiver, one for each slot.
constexpr uint64_t kCreditAt = 0, kArrivedAt = kLineBytes;
uint64_t CountersEnd(const WireShape& shape) { return kArrivedAt + SlotCountersBytes(shape.slots); }

}  // namespace

Location Communicator::OfferWire(int rank, int peer, Protocol protocol) {
  Local& here = At(rank);
  const WireShape shape = spec_.wires[static_cast<int>(protocol)];
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.memory == nullptr) {
    wire.memory = NewMemory(here.device, spec_.lanes * (shape.slots * shape.slot_bytes + CountersEnd(shape)));
    wire.offered = spec_.ranks[peer].process == process_ ? Location{0, reinterpret_cast<uint64_t>(wire.memory)}
                                                         : Offer(rank, wire.memory, 1);
  }
  return wire.offered;
}

void Communicator::ConnectWire(int rank, int peer, Protocol protocol, Location theirs) {
  Local& here = At(rank);
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.connected) return;
  if (wire.memory == nullptr) {
    throw std::runtime_error(spec_.name + ": rank " + std::to_string(rank) + " connects to rank " +
                             std::to_string(peer) + " before it has offered its memory");
  }
  const WireShape shape = spec_.wires[static_cast<int>(protocol)];
  const uint64_t area = shape.slots * shape.slot_bytes, counters = spec_.lanes * area;
  char* far = regions_.Resolve(here.device, spec_.ranks[peer].process, theirs, After(spec_.timeout_s));
  for (uint32_t lane = 0; lane < spec_.lanes; ++lane) {
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
    gpu_.Copy(here.device, here.own + ConnectionIndex(protocol, lane, peer) * sizeof(Connection), &connection,
              sizeof connection);
  }
  wire.connected = true;
}

std::string Communicator::ConnectNetwork(int rank, int peer, Protocol protocol) {
  Local& here = At(rank);
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.connected) return "";
  if (proxy_ == nullptr) {
    throw std::runtime_error(spec_.name + ": no proxy thread carries messages to " + spec_.ranks[peer].name);
  }
  if (protocol == Protocol::kLL128) {
    throw std::runtime_error(spec_.name +
                             ": the protocol ll128 cannot be used over the network, which connects the ranks " +
                             std::to_string(rank) + " and " + std::to_string(peer));
  }
  const WireShape shape = spec_.wires[static_cast<int>(protocol)];
  ProxySpec spec;
  spec.name = hash_ + static_cast<uint64_t>(protocol);
  spec.src = rank;
  spec.dst = peer;
  spec.process = local(peer) ? ProxySpec::kHere : spec_.ranks[peer].process;
  spec.device = here.device;
  spec.lanes = spec_.lanes;
  spec.slots = shape.slots;
  spec.slot_bytes = shape.slot_bytes;
  spec.counts = protocol == Protocol::kSimple;
  spec.where = "at " + spec_.ranks[rank].name + " from " + spec_.ranks[peer].name;
  spec.broken = [this](const std::string& why) {
    MutexLock lock(mutex_);
    damage_ = spec_.name + ": " + why;
  };
  std::string how;
  std::vector<Connection> connections = proxy_->Connect(spec, &how);
  for (uint32_t lane = 0; lane < spec_.lanes; ++lane) {
    connections[lane].peer = peer;
    gpu_.Copy(here.device, here.own + ConnectionIndex(protocol, lane, peer) * sizeof(Connection), &connections[lane],
              sizeof(Connection));
  }
  wire.connected = true;
  return how;
}

bool Communicator::Connected(int rank, int peer, Protocol protocol) {
  auto& wires = At(rank).wires;
  auto it = wires.find({peer, static_cast<int>(protocol)});
  return it != wires.end() && it->second.connected;
}

Location Communicator::OfferStaging(int rank, uint64_t bytes) {
  if (staging_bytes_ != 0 && staging_bytes_ != bytes) {
    throw std::invalid_argument(spec_.name + ": staging buffers have " + std::to_string(staging_bytes_) +
                                " bytes and not " + std::to_string(bytes));
  }
  staging_bytes_ = bytes;
  Local& here = At(rank);
  char*& own = here.staging_buffers[rank];
  if (own == nullptr) own = NewMemory(here.device, bytes);
  return Offer(rank, own, bytes);
}

void Communicator::EnterStaging(int rank, int peer, Location theirs) {
  Local& here = At(rank);
  here.staging_buffers[peer] = regions_.Resolve(here.device, spec_.ranks[peer].process, theirs, After(spec_.timeout_s));
}

char* Communicator::StagingBuffer(int rank, int peer) {
  const auto& staging_buffers = At(rank).staging_buffers;
  const auto found = staging_buffers.find(peer);
  if (found == staging_buffers.end()) {
    throw std::invalid_argument(spec_.name + ": the staging buffer of rank " + std::to_string(peer) +
                                " was not entered at rank " + std::to_string(rank));
  }
  return found->second;
}

}  // namespace jaxring::cuda
