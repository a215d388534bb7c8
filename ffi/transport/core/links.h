// Every link of this process, by peer and channel, and the local rings between its own ranks.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "transport/core/faults.h"
#include "transport/core/link.h"
#include "transport/core/send_totals.h"

namespace jaxring {

class Links {
 public:
  Links(uint32_t slot_bytes, Notifier* own_doorbell, const FaultPlan& faults = {})
      : slot_bytes_(slot_bytes), own_doorbell_(own_doorbell), faults_(faults) {}

  uint32_t slot_bytes() const { return slot_bytes_; }
  void AddSend(int peer, int channel, std::shared_ptr<SendLink> link);
  void AddRecv(int peer, int channel, std::shared_ptr<RecvLink> link);
  // nullptr while there is none. A receiving link appears when the peer dials.
  std::shared_ptr<SendLink> Send(int peer, int channel) const;
  std::shared_ptr<RecvLink> Recv(int peer, int channel) const;
  // The two ends of a heap ring between two devices of this process, made at first use.
  std::shared_ptr<SendLink> LocalSend(int src_device, int dst_device, int channel);
  std::shared_ptr<RecvLink> LocalRecv(int src_device, int dst_device, int channel);
  std::vector<std::shared_ptr<RecvLink>> AllRecv() const;
  // What has been sent so far on connections that count it, by peer and channel; of `most` of them at most.
  std::map<std::pair<int, int>, SendTotals> Totals(size_t most) const;
  // The processes that share memory with this one, each with the CPU of its waiter (`Doorbell::WaiterCpu`). Writes as
  // many as fit into `cpus` and returns how many there are. Allocates nothing.
  size_t WaiterCpus(std::span<std::pair<int, int>> cpus) const;
  // Whether any of them may need a CPU for anything but waiting for `operation` (`Doorbell::MayNeedCpu`).
  bool AnyMayNeedCpu(int cpu, uint64_t operation) const;
  // Closes the links that share memory with a peer that is gone. Others have connections, which end by themselves.
  void CloseShared(int peer, const std::string& reason, Ending ending);
  // A peer has ended in good order: closes the links to it and the complete links from it, unless their transport does
  // that itself (`Transport::closed_at_goodbye`).
  void CloseLeft(int peer, const std::string& reason);
  // Whether a link may still deliver messages from a peer that sends no more. One of shared memory has delivered them.
  bool MayBring(int peer) const;
  // Closes and drops all links.
  void Clear(const std::string& reason);
  // Bytes of slots in this process's memory, for `doctor`.
  size_t MemoryBytes() const;

 private:
  struct LocalLink {
    std::shared_ptr<SendLink> send;
    std::shared_ptr<RecvLink> recv;
  };
  // Turns on fault injection for a link's messages where its transport has none of its own.
  void InjectFaults(SendLink& link, int peer, int channel) const;
  LocalLink& Local(int src_device, int dst_device, int channel) JAXRING_REQUIRES(mutex_);

  uint32_t slot_bytes_;
  Notifier* own_doorbell_;
  const FaultPlan faults_;
  mutable Mutex mutex_;
  std::map<std::pair<int, int>, std::shared_ptr<SendLink>> send_ JAXRING_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, std::shared_ptr<RecvLink>> recv_ JAXRING_GUARDED_BY(mutex_);
  std::map<std::tuple<int, int, int>, LocalLink> local_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
