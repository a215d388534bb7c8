// How the carrier's lines come to be: where their slots lie, and their counters.
#include <algorithm>
#include <stdexcept>

#include "cuda/host/network/carrier_line.h"

namespace jaxring::cuda {

void Carrier::AllowDirect(int device, std::vector<std::string> nics) {
  std::lock_guard lock(mutex_);
  near_[device] = std::move(nics);
}

std::string Carrier::WhyPinned(const Carried& carried, const SendLink* link) {
  if (!carried.counts) return "ll's lines are read while they are written";
  if (engine_.options().checksums) return "JAXRING_CHECKSUM has the processor read what is sent";
  const auto sender = link == nullptr ? nullptr : link->direct.lock();
  if (sender == nullptr) return "the link is not by RDMA";
  std::lock_guard lock(mutex_);
  const auto& near = near_[carried.device];
  if (std::find(near.begin(), near.end(), sender->device()) != near.end()) return "";
  return sender->device() + " is farther from the GPU than JAXRING_NET_GDR_LEVEL says";
}

std::vector<Connection> Carrier::Carry(const Carried& carried, std::string* how) {
  if (carried.slot_bytes > engine_.links().slot_bytes()) {
    throw std::invalid_argument("slots of " + std::to_string(carried.slot_bytes) +
                                " bytes are longer than messages between processes: raise JAXRING_BUFFSIZE");
  }
  if (carried.slots * 2 > 0x10000 || carried.lanes > 0x10000) throw std::invalid_argument("too many slots or lanes");
  std::shared_ptr<SendLink> link;
  if (carried.process != Carried::kHere) {
    link = engine_.links().Send(carried.process, 0);
    if (link == nullptr) throw std::runtime_error("there is no link to process " + std::to_string(carried.process));
  }
  const uint64_t area = carried.slots * carried.slot_bytes;
  const uint64_t sizes = (carried.slots * sizeof(uint32_t) + kLineBytes - 1) / kLineBytes * kLineBytes;
  const uint64_t counts = kCounters * kLineBytes + sizes;
  const auto slots = std::make_shared<Slots>(gpu_, carried.device, carried.lanes * area, link.get(), carried.counts,
                                             WhyPinned(carried, link.get()));
  if (how != nullptr) *how = slots->description();
  char* counted = gpu_.AllocatePinned(carried.lanes * counts);
  std::vector<Connection> connections;
  for (uint32_t lane = 0; lane < carried.lanes; ++lane, counted += counts) {
    auto line = std::make_unique<Line>();
    line->what = carried;
    line->lane = lane;
    line->slots = slots;
    line->send_slots = slots->sent() + lane * area;
    line->recv_slots = slots->received() + lane * area;
    for (int c = 0; c < kCounters; ++c) line->counters[c] = reinterpret_cast<uint64_t*>(counted + c * kLineBytes);
    line->sizes = reinterpret_cast<uint32_t*>(counted + kCounters * kLineBytes);
    Connection connection{};
    connection.send_slots = line->send_slots;
    connection.recv_slots = line->recv_slots;
    connection.tail = line->counters[kTail];
    connection.arrived = line->counters[kArrived];
    connection.credit = line->counters[kCredit];
    connection.give = line->counters[kGive];
    connection.sizes = line->sizes;
    connections.push_back(connection);
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  engine_.bell().NotifyAll();
  return connections;
}

}  // namespace jaxring::cuda
