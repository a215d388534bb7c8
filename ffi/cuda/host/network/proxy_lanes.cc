// How the lanes of a proxy connection are made: where their slots lie, and their counters.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cuda/host/network/proxy_lane.h"

namespace jaxring::cuda {

void Proxy::AllowDirect(int device, std::vector<std::string> nics) {
  MutexLock lock(mutex_);
  near_[device] = std::move(nics);
}

std::string Proxy::WhyPinned(const ProxySpec& spec, const SendLink* link) {
  if (!spec.counts) return "ll's lines are read while they are written";
  if (checksums_) return "JAXRING_CHECKSUM makes the CPU read what is sent";
  const auto sender = link == nullptr ? nullptr : link->direct.lock();
  if (sender == nullptr) return "the link is not by RDMA";
  MutexLock lock(mutex_);
  const auto& near = near_[spec.device];
  if (std::find(near.begin(), near.end(), sender->device()) != near.end()) return "";
  return sender->device() + " is farther from the GPU than JAXRING_NET_GDR_LEVEL says";
}

std::vector<Connection> Proxy::Connect(const ProxySpec& spec, std::string* how) {
  if (spec.slot_bytes > network_.links().slot_bytes()) {
    throw std::invalid_argument("slots of " + std::to_string(spec.slot_bytes) +
                                " bytes are longer than messages between processes: raise JAXRING_BUFFSIZE");
  }
  if (spec.slots * 2 > 0x10000 || spec.lanes > MessageId::kSecondEngine)
    throw std::invalid_argument("too many slots or lanes");
  std::shared_ptr<SendLink> link;
  if (spec.process != ProxySpec::kHere) {
    link = network_.links().Send(spec.process, 0);
    if (link == nullptr) throw std::runtime_error("there is no link to process " + std::to_string(spec.process));
  }
  const uint64_t area = spec.slots * spec.slot_bytes;
  const uint64_t sizes = (spec.slots * sizeof(uint32_t) + kLineBytes - 1) / kLineBytes * kLineBytes;
  const uint64_t lengths[kCounters] = {SlotCountersBytes(spec.slots), SlotCountersBytes(spec.slots), kLineBytes,
                                       kLineBytes};
  const uint64_t counts = std::accumulate(lengths, lengths + kCounters, sizes);
  const auto slots = std::make_shared<Slots>(gpu_, spec.device, spec.lanes * area, link.get(), spec.counts,
                                             WhyPinned(spec, link.get()));
  if (how != nullptr) *how = slots->description();
  auto take = [rest = gpu_.memory.AllocatePinned(spec.lanes * counts)](uint64_t bytes) mutable {
    return std::exchange(rest, rest + bytes);
  };
  std::vector<Connection> connections;
  for (uint32_t i = 0; i < spec.lanes; ++i) {
    auto lane = std::make_unique<LaneState>();
    lane->what = spec;
    lane->index = i;
    lane->slots = slots;
    lane->send_slots = slots->sent() + i * area;
    lane->recv_slots = slots->received() + i * area;
    for (int c = 0; c < kCounters; ++c) lane->counters[c] = reinterpret_cast<uint64_t*>(take(lengths[c]));
    lane->sizes = reinterpret_cast<uint32_t*>(take(sizes));
    Connection connection{};
    connection.send_slots = lane->send_slots;
    connection.recv_slots = lane->recv_slots;
    connection.tail = lane->counters[kTail];
    connection.arrived = lane->counters[kArrived];
    connection.credit = lane->counters[kCredit];
    connection.give = lane->counters[kGive];
    connection.sizes = lane->sizes;
    connections.push_back(connection);
    MutexLock lock(mutex_);
    lanes_.push_back(std::move(lane));
  }
  added_->NotifyAll();
  return connections;
}

}  // namespace jaxring::cuda
