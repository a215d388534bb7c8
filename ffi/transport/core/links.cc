#include "transport/core/links.h"

#include <algorithm>
#include <type_traits>

namespace jaxring {
namespace {

// Rings between ranks of this process, which no connector makes.
constexpr Transport kLocal{.name = "local", .shares_memory = true};

}  // namespace

void Links::InjectFaults(SendLink& link, int peer, int channel) const {
  if (!faults_.any() || link.transport.injects_faults) return;
  link.faults = std::make_unique<Faults>(faults_, FaultsOf(peer, channel));
  link.ll.set_faults(link.faults.get());
  link.simple.set_faults(link.faults.get());
  link.shared_blocks.reset();  // faults apply to payloads in slots only
}

void Links::AddSend(int peer, int channel, std::shared_ptr<SendLink> link) {
  InjectFaults(*link, peer, channel);
  {
    MutexLock lock(mutex_);
    send_[{peer, channel}] = std::move(link);
  }
  own_doorbell_->Notify();
}

void Links::AddRecv(int peer, int channel, std::shared_ptr<RecvLink> link) {
  {
    MutexLock lock(mutex_);
    recv_[{peer, channel}] = std::move(link);
  }
  own_doorbell_->Notify();
}

std::shared_ptr<SendLink> Links::Send(int peer, int channel) const {
  MutexLock lock(mutex_);
  auto it = send_.find({peer, channel});
  return it == send_.end() ? nullptr : it->second;
}

std::shared_ptr<RecvLink> Links::Recv(int peer, int channel) const {
  MutexLock lock(mutex_);
  auto it = recv_.find({peer, channel});
  return it == recv_.end() ? nullptr : it->second;
}

Links::LocalLink& Links::Local(int src_device, int dst_device, int channel) {
  LocalLink& link = local_[{src_device, dst_device, channel}];
  if (!link.send) {
    link.send = std::make_shared<SendLink>(kLocal, LinkMemory::Anonymous(slot_bytes_), own_doorbell_);
    // The sending end owns the memory, so the receiving end keeps the sending end alive.
    std::shared_ptr<SendLink> send = link.send;
    link.recv = std::shared_ptr<RecvLink>(new RecvLink(kLocal, send->memory.View(), own_doorbell_),
                                          [send](RecvLink* recv) { delete recv; });
  }
  return link;
}

std::shared_ptr<SendLink> Links::LocalSend(int src_device, int dst_device, int channel) {
  MutexLock lock(mutex_);
  return Local(src_device, dst_device, channel).send;
}

std::shared_ptr<RecvLink> Links::LocalRecv(int src_device, int dst_device, int channel) {
  MutexLock lock(mutex_);
  return Local(src_device, dst_device, channel).recv;
}

std::vector<std::shared_ptr<RecvLink>> Links::AllRecv() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<RecvLink>> all;
  for (const auto& entry : recv_) all.push_back(entry.second);
  for (const auto& entry : local_) all.push_back(entry.second.recv);
  return all;
}

std::map<std::pair<int, int>, SendTotals> Links::Totals(size_t most) const {
  MutexLock lock(mutex_);
  std::map<std::pair<int, int>, SendTotals> all;
  for (const auto& [key, link] : send_) {
    if (all.size() == most) break;
    if (SendTotals totals; link->notifier && link->notifier->GetTotals(&totals)) all.emplace(key, totals);
  }
  return all;
}

size_t Links::WaiterCpus(std::span<std::pair<int, int>> cpus) const {
  size_t count = 0;
  MutexLock lock(mutex_);
  for (const auto& [key, link] : send_) {
    if (key.second != 0 || link->doorbell == nullptr) continue;
    if (count < cpus.size()) cpus[count] = {key.first, link->doorbell->WaiterCpu()};
    ++count;
  }
  return count;
}

bool Links::AnyMayNeedCpu(int cpu, uint64_t operation) const {
  MutexLock lock(mutex_);
  return std::any_of(send_.begin(), send_.end(), [&](const auto& entry) {
    return entry.first.second == 0 && entry.second->doorbell != nullptr &&
           entry.second->doorbell->MayNeedCpu(cpu, operation);
  });
}

void Links::CloseShared(int peer, const std::string& reason, Ending ending) {
  {
    MutexLock lock(mutex_);
    for (auto& [key, link] : send_) {
      if (key.first == peer && link->transport.shares_memory) link->end.Close(reason, ending);
    }
    for (auto& [key, link] : recv_) {
      if (key.first == peer && link->transport.shares_memory) link->end.Close(reason, ending);
    }
  }
  own_doorbell_->Notify();
}

void Links::CloseLeft(int peer, const std::string& reason) {
  bool any = false;
  auto close = [&](auto& link) {
    const bool shared = link.transport.shares_memory;
    if (!shared && !link.transport.closed_at_goodbye) return;
    if constexpr (std::is_same_v<std::decay_t<decltype(link)>, RecvLink>) {
      if (!shared && !link.end.complete.load(std::memory_order_acquire)) return;
    }
    any |= !link.end.closed.load(std::memory_order_relaxed);
    link.end.Close(reason, Ending::kGoodbye);
  };
  {
    MutexLock lock(mutex_);
    for (auto& [key, link] : send_) {
      if (key.first == peer) close(*link);
    }
    for (auto& [key, link] : recv_) {
      if (key.first == peer) close(*link);
    }
  }
  if (any) own_doorbell_->Notify();
}

bool Links::MayBring(int peer) const {
  MutexLock lock(mutex_);
  return std::any_of(recv_.begin(), recv_.end(), [peer](const auto& entry) {
    const LinkEnd& end = entry.second->end;
    return entry.first.first == peer && !entry.second->transport.shares_memory &&
           !end.closed.load(std::memory_order_acquire) && !end.complete.load(std::memory_order_acquire);
  });
}

void Links::Clear(const std::string& reason) {
  decltype(send_) send;
  decltype(recv_) recv;
  decltype(local_) local;
  {
    MutexLock lock(mutex_);
    send.swap(send_);
    recv.swap(recv_);
    local.swap(local_);
  }
  for (auto& [key, link] : send) link->end.Close(reason);
  for (auto& [key, link] : recv) link->end.Close(reason);
  own_doorbell_->Notify();
}

size_t Links::MemoryBytes() const {
  MutexLock lock(mutex_);
  size_t blocks = 0;  // of one pool, which all links have that have one
  for (const auto& [key, link] : send_) {
    if (link->shared_blocks) blocks = link->shared_blocks->bytes();
  }
  return (send_.size() + recv_.size() + local_.size()) * (LLShape().bytes() + SimpleShape(slot_bytes_).bytes()) +
         blocks;
}

}  // namespace jaxring
