// The proxy thread: carries messages between kernels and network peers. A kernel fills slots and counts them. The proxy
// sends their bytes over the links to the peer's process, copies what arrives into slots and counts it, and carries the
// counts of slots that were read in the other direction (credits).
//
// Over an RDMA link, messages of the Simple protocol bypass the host: the receiver invites the sender to write to its
// slots (see Slots), the sender's NIC does so, and a notice of a few bytes names the message. LL's lines are read while
// they are written, which requires whole words that no network guarantees, so these go through the link.
//
// A message's `check` is the call of its Stamp.
//
// One thread serves all connections. A GPU cannot wake it, so it polls every counter in turn and sleeps longer each
// time that it finds nothing. It sleeps on the network's doorbell only while it has connections, since each message to
// this process costs its sender a system call while a thread sleeps there.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cuda/host/gpu/gpu.h"
#include "cuda/host/network/slots.h"
#include "network/network.h"
#include "transport/core/doorbell.h"

namespace jaxring::cuda {

// A counter, or any other word that is polled, has this many bytes to itself.
inline constexpr uint64_t kLineBytes = 128;
// The length of the counters of a connection's slots, one way: Connection::tail, or `arrived`.
constexpr uint64_t SlotCountersBytes(uint64_t slots) {
  return (slots * sizeof(uint64_t) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

// The connection of all lanes with one peer. `name` and the sizes are equal on both sides.
struct ProxySpec {
  uint64_t name = 0;
  int src = 0, dst = 0;  // this rank, the peer
  int process = 0;       // the peer's, or kHere: a rank of this process whose device cannot be addressed
  static constexpr int kHere = -1;
  int device = 0;  // runs the kernels
  uint32_t lanes = 1;
  uint32_t slots = 0;  // of a lane, each way
  uint64_t slot_bytes = 0;
  bool counts = false;  // kernels wait for the counter before they read a slot (Simple)
  std::string where;    // "at rank 1 (...) from rank 0 (...)", for error messages
  // Called on the proxy thread with the reason why the connection cannot go on.
  std::function<void(const std::string&)> broken;
};

class Proxy {
 public:
  Proxy(Gpu& gpu, Network& network, bool checksums);
  ~Proxy();
  Proxy(const Proxy&) = delete;

  // Stops the thread. Afterwards the memory may be freed.
  void Stop();
  // Sets the NICs that are near enough to a device to address its memory.
  void AllowDirect(int device, std::vector<std::string> nics);
  // Allocates the connection's memory and carries its messages from now on. There must be a link to the process on
  // channel 0. Returns each lane's end, and in `how` what moves the bytes. Throws std::invalid_argument if a slot is
  // longer than a message of the links, GpuError, and std::runtime_error if the NIC cannot register the memory.
  std::vector<Connection> Connect(const ProxySpec& spec, std::string* how);

  uint64_t messages() const { return messages_; }
  // Messages that NICs moved without the host, and those of them that were read from a GPU's memory.
  uint64_t direct_messages() const { return direct_messages_; }
  uint64_t gpu_direct_messages() const { return gpu_direct_messages_; }

 private:
  struct LaneState;
  void Run();
  // Looks at each lane once. Returns whether anything was moved, and in `lanes` how many there are.
  bool Move(size_t* lanes);
  uint32_t Checksum(const void* data, uint32_t bytes) const;
  std::string WhyPinned(const ProxySpec& spec, const SendLink* link);
  void FindLinks(LaneState& lane);
  void Invite(LaneState& lane);
  bool Send(LaneState& lane);
  bool SendDirect(LaneState& lane, uint64_t slot, uint32_t bytes, uint32_t call);
  bool SendCredit(LaneState& lane);
  bool Receive(LaneState& lane);
  bool ReceiveCredit(LaneState& lane);
  void Damaged(LaneState& lane, const MessageId& id, uint32_t bytes);
  // Takes the message of that name, if it has arrived, and passes it to `use(payload, message)`. A damaged message ends
  // the lane.
  template <class Use>
  bool Take(LaneState& lane, const MessageId& id, Use use);

  Gpu& gpu_;
  Network& network_;
  const bool checksums_;
  const std::unique_ptr<Doorbell> added_;  // rung when there are new lanes, and at the end
  Mutex mutex_;
  std::vector<std::unique_ptr<LaneState>> lanes_ JAXRING_GUARDED_BY(mutex_);
  std::map<int, std::vector<std::string>> near_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<uint64_t> messages_{0}, direct_messages_{0}, gpu_direct_messages_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace jaxring::cuda
