// A communicator's connections: slots and counters of two ranks, by memory or over the network, and landings.
#include "cuda/host/communicator.h"

namespace jaxring::cuda {
namespace {

// The counters of one lane of a wire, a line each: what we wait for as a sender, and as a receiver.
constexpr uint64_t kCreditAt = 0, kArrivedAt = kLineBytes, kCountersEnd = 2 * kLineBytes;

}  // namespace

Location Communicator::OfferWire(int rank, int peer, Protocol protocol) {
  Local& here = At(rank);
  const WireShape shape = spec_.wires[static_cast<int>(protocol)];
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.memory == nullptr) {
    wire.memory = NewMemory(here.device, spec_.lanes * (shape.slots * shape.slot_bytes + kCountersEnd));
    wire.offered = spec_.ranks[peer].process == process_ ? Location{0, reinterpret_cast<uint64_t>(wire.memory)}
                                                         : Offer(rank, wire.memory, 1);
  }
  return wire.offered;
}

void Communicator::ConnectWire(int rank, int peer, Protocol protocol, Location theirs) {
  Local& here = At(rank);
  Wire& wire = here.wires[{peer, static_cast<int>(protocol)}];
  if (wire.connected) return;
  if (wire.memory == nullptr) throw std::runtime_error("a wire is connected before it was offered");
  const WireShape shape = spec_.wires[static_cast<int>(protocol)];
  const uint64_t area = shape.slots * shape.slot_bytes, counters = spec_.lanes * area;
  char* far = regions_.Resolve(here.device, spec_.ranks[peer].process, theirs, After(spec_.timeout_s));
  for (uint32_t lane = 0; lane < spec_.lanes; ++lane) {
    Connection connection{};
    connection.send_slots = far + lane * area;
    connection.recv_slots = wire.memory + lane * area;
    char* ours = wire.memory + counters + lane * kCountersEnd;
    char* others = far + counters + lane * kCountersEnd;
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
  if (carrier_ == nullptr) throw std::runtime_error("there is nothing to carry messages to " + spec_.ranks[peer].name);
  if (protocol == Protocol::kLL128) throw std::runtime_error("the ll128 protocol does not go over the network");
  const WireShape shape = spec_.wires[static_cast<int>(protocol)];
  Carried carried;
  carried.name = hash_ + static_cast<uint64_t>(protocol);
  carried.src = rank;
  carried.dst = peer;
  carried.process = local(peer) ? Carried::kHere : spec_.ranks[peer].process;
  carried.device = here.device;
  carried.lanes = spec_.lanes;
  carried.slots = shape.slots;
  carried.slot_bytes = shape.slot_bytes;
  carried.counts = protocol == Protocol::kSimple;
  carried.where = "at " + spec_.ranks[rank].name + " from " + spec_.ranks[peer].name;
  carried.broken = [this](const std::string& why) {
    std::lock_guard lock(mutex_);
    damage_ = spec_.name + ": " + why;
  };
  std::string how;
  std::vector<Connection> connections = carrier_->Carry(carried, &how);
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

Location Communicator::OfferLanding(int rank, uint64_t bytes) {
  if (landing_bytes_ != 0 && landing_bytes_ != bytes) throw std::invalid_argument("landings of different sizes");
  landing_bytes_ = bytes;
  Local& here = At(rank);
  char*& own = here.landings[rank];
  if (own == nullptr) own = NewMemory(here.device, bytes);
  return Offer(rank, own, bytes);
}

void Communicator::EnterLanding(int rank, int peer, Location theirs) {
  Local& here = At(rank);
  here.landings[peer] = regions_.Resolve(here.device, spec_.ranks[peer].process, theirs, After(spec_.timeout_s));
}

char* Communicator::Landing(int rank, int peer) {
  const auto& landings = At(rank).landings;
  const auto found = landings.find(peer);
  if (found == landings.end()) throw std::invalid_argument("copies to a rank whose landing is not known");
  return found->second;
}

}  // namespace jaxring::cuda
