// Every link of this process, by peer and channel, and the local rings between its own ranks.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "transport/core/faults.h"
#include "transport/core/link.h"

namespace jaxring {

class Links {
 public:
  Links(uint32_t slot_bytes, Notifier* own_doorbell, const FaultPlan& faults = {})
      : slot_bytes_(slot_bytes), own_doorbell_(own_doorbell), faults_(faults) {}

  uint32_t slot_bytes() const { return slot_bytes_; }
  void AddSend(int peer, int channel, std::shared_ptr<SendLink> link);
  // A shared-memory link whose peer has not mapped it yet, and its completion by the peer's doorbell.
  void AddPending(int peer, int channel, std::shared_ptr<SendLink> link);
  void CompletePending(int peer, int channel, std::unique_ptr<Doorbell> doorbell);
  void AddRecv(int peer, int channel, std::shared_ptr<RecvLink> link);
  // Has memory for one end of a link ready, so that nothing can fail once the two have agreed on it. What is taken is
  // that, or new.
  void Prepare(int peer, int channel, bool sending);
  LinkMemory TakePrepared(int peer, int channel, bool sending);
  // What this process has for several of its host, made at first use; the same until Clear.
  std::shared_ptr<BlockPool> Blocks();
  // nullptr while there is none: receiving links appear when the peer dials.
  std::shared_ptr<SendLink> Send(int peer, int channel) const;
  std::shared_ptr<RecvLink> Recv(int peer, int channel) const;
  // The two ends of a heap ring between two devices of this process, made at first use.
  std::shared_ptr<SendLink> LocalSend(int src_device, int dst_device, int channel);
  std::shared_ptr<RecvLink> LocalRecv(int src_device, int dst_device, int channel);
  std::vector<std::shared_ptr<RecvLink>> AllRecv() const;
  // Processes that share memory with this one, each with its waiter's CPU (`Doorbell::WaiterCpu`): writes the first of
  // them, and returns how many there are. Allocates nothing.
  size_t WaiterCpus(std::span<std::pair<int, int>> cpus) const;
  // Whether any of them may want a processor for something else than to wait in `operation`.
  bool AnyMayNeedCpu(int processor, uint64_t operation) const;
  // Closes the links by shared memory with a peer that is gone; others have connections, which end by themselves.
  void CloseShared(int peer, const std::string& reason, Ending ending);
  // A peer has ended in good order. Closes what carries nothing any more: links to it, and complete ones from it. Those
  // by devices are left to their pumps.
  void CloseLeft(int peer, const std::string& reason);
  // Whether more may come from a peer that has ended in good order, on a link that is there.
  bool MayBring(int peer) const;
  // Closes all links and forgets them.
  void Clear(const std::string& reason);
  // Bytes of slots in this process's memory, for `doctor`.
  size_t MemoryBytes() const;

 private:
  struct LocalLink {
    std::shared_ptr<SendLink> send;
    std::shared_ptr<RecvLink> recv;
  };
  // Lets a link's messages suffer as the plan has it, where no socket carries them.
  void Spoil(SendLink& link, int peer, int channel) const;
  LocalLink& Local(int src_device, int dst_device, int channel);

  uint32_t slot_bytes_;
  Notifier* own_doorbell_;
  const FaultPlan faults_;
  mutable std::mutex mutex_;
  std::map<std::pair<int, int>, std::shared_ptr<SendLink>> send_, pending_;
  std::map<std::pair<int, int>, std::shared_ptr<RecvLink>> recv_;
  std::map<std::tuple<int, int, int>, LocalLink> local_;
  std::map<std::tuple<int, int, bool>, LinkMemory> prepared_;
  std::shared_ptr<BlockPool> blocks_;
};

}  // namespace jaxring
