// Carries messages between kernels and network peers. A kernel fills slots and counts them; the proxy sends their
// bytes over the links to the peer's process, puts what arrives into slots and counts it, and takes the counts of slots
// that were read back the other way.
//
// Over a link by RDMA the messages of Simple do not pass through this process: the receiver invites the sender to write
// to its slots (see Slots), the sender's NIC does, and a note of a few bytes says which message is there. LL's lines
// are read while they are written, which asks for whole words that no network promises, so these go through the link.
//
// One thread for all connections: it looks at every counter in turn, since a GPU cannot wake it, and sleeps a little
// longer each time that it finds nothing.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/network/slots.h"
#include "engine/engine.h"

namespace jaxring::cuda {

// What a counter, or anything else that others poll, has for itself.
inline constexpr uint64_t kLineBytes = 128;

// The traffic of all lanes with one peer. `name` is the same on both sides, as are what counts it.
struct ProxySpec {
  uint64_t name = 0;
  int src = 0, dst = 0;  // this rank, the peer
  int process = 0;       // the peer's, or kHere: a rank of this process, on a device out of reach
  static constexpr int kHere = -1;
  int device = 0;  // whose kernels these are
  uint32_t lanes = 1;
  uint32_t slots = 0;  // of a lane, each way
  uint64_t slot_bytes = 0;
  bool counts = false;  // kernels wait for the counter before they read a slot (Simple)
  std::string where;    // "at rank 1 (...) from rank 0 (...)", for sentences
  // What to do, on the proxy's thread, with a sentence of why the connection cannot go on.
  std::function<void(const std::string&)> broken;
};

class Proxy {
 public:
  Proxy(Gpu& gpu, Engine& engine);
  ~Proxy();
  Proxy(const Proxy&) = delete;

  // Carries nothing more: the memory may go away.
  void Stop();
  // The NICs that are near enough to a device to address its memory.
  void AllowDirect(int device, std::vector<std::string> nics);
  // Makes the connection's memory and carries it from now on. There must be a link to the process, channel 0. Returns
  // each lane's half, and says in `how` who moves the bytes. Throws std::invalid_argument where a slot is longer than a
  // message of the links, GpuError, and std::runtime_error where the link's NIC does not take the memory.
  std::vector<Connection> Connect(const ProxySpec& spec, std::string* how);

  uint64_t messages() const { return messages_; }
  // Those of them that NICs moved by themselves, and those that they read from a GPU's memory.
  uint64_t direct_messages() const { return direct_messages_; }
  uint64_t gpu_direct_messages() const { return gpu_direct_messages_; }

 private:
  struct LaneState;
  void Run();
  uint32_t Checksum(const void* data, uint32_t bytes) const;
  std::string WhyPinned(const ProxySpec& spec, const SendLink* link);
  void FindLinks(LaneState& lane);
  void Invite(LaneState& lane);
  bool Send(LaneState& lane);
  bool SendDirect(LaneState& lane, uint64_t slot, uint32_t bytes);
  bool SendCredit(LaneState& lane);
  bool Receive(LaneState& lane);
  bool ReceiveCredit(LaneState& lane);
  void Damaged(LaneState& lane, const MessageId& id, uint32_t bytes);
  // Takes the message of that name, if it is there, and gives it to `use(payload, bytes)`.
  // One that is damaged ends the lane.
  template <class Use>
  bool Take(LaneState& lane, const MessageId& id, Use use);

  Gpu& gpu_;
  Engine& engine_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LaneState>> lanes_;
  std::map<int, std::vector<std::string>> near_;
  std::atomic<uint64_t> messages_{0}, direct_messages_{0}, gpu_direct_messages_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace jaxring::cuda
