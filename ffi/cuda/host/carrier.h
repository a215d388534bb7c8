// Carries messages between kernels and network peers. A kernel fills slots in pinned memory and counts them; the
// carrier sends their bytes over the links to the peer's process, puts what arrives into slots and counts it, and takes
// the counts of slots that were read back the other way.
//
// One thread for all connections: it looks at every counter in turn, since a GPU cannot wake it, and sleeps a little
// longer each time that it finds nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ffi/cuda/host/gpu.h"
#include "ffi/engine/engine.h"

namespace jaxring::cuda {

// What a counter, or anything else that others poll, has for itself.
inline constexpr uint64_t kLineBytes = 128;

// The traffic of one lane with one peer. `name` is the same on both sides, as are slots and slot_bytes.
struct Carried {
  uint64_t name = 0;
  int src = 0, dst = 0;  // this rank, the peer
  int process = 0;       // the peer's, or kHere: a rank of this process, on a device out of reach
  static constexpr int kHere = -1;
  uint32_t lane = 0;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  // What to do, on the carrier's thread, when a message is not what was sent (EngineOptions::checksums).
  std::function<void(const std::string&)> damaged;
};

class Carrier {
 public:
  Carrier(Gpu& gpu, Engine& engine);
  ~Carrier();
  Carrier(const Carrier&) = delete;

  // Carries nothing more: the memory may go away.
  void Stop();
  // Makes the connection's memory and carries it from now on. There must be a link to the process, channel 0.
  // Throws std::invalid_argument where a slot is longer than a message of the links.
  Connection Carry(const Carried& carried);

  uint64_t messages() const { return messages_; }

 private:
  struct Line;
  void Run();
  uint32_t Checksum(const void* data, uint32_t bytes) const;
  void FindLinks(Line& line);
  bool Send(Line& line);
  bool SendCredit(Line& line);
  bool Receive(Line& line);
  bool ReceiveCredit(Line& line);
  // Takes the message of that name, if it is there, and gives it to `use(payload, bytes)`.
  // One that is damaged ends the line.
  template <class Use>
  bool Take(Line& line, const MessageId& id, Use use);

  Gpu& gpu_;
  Engine& engine_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::atomic<uint64_t> messages_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace jaxring::cuda
