// What a network tells the engine that uses it, and asks of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "network/peers/heartbeat_data.h"

namespace jaxring {

// Called on the poller's thread, or on one that has found a failure. No lock of the network is held, unless it says so.
class NetworkClient {
 public:
  virtual ~NetworkClient() = default;
  // About every 50 ms, on the poller's thread.
  virtual void OnTick() = 0;
  // The operation with this key has failed, here or in another process: this is called once, at the first that is known
  // of it.
  virtual void OnFailure(uint64_t key, const Status& failure) = 0;
  // Another process has halted, for this reason.
  virtual void OnHalted(int process, const std::string& reason) = 0;
  // A control message for Python.
  virtual void OnMessage(int process, const std::string& text) = 0;
  // How the clock of another process differs, with each of its heartbeats. Under a lock: must not call the network.
  virtual void OnClock(int process, const ClockOffset& clock) = 0;
  // This process's launch of an operation, and the number of its record. Under a lock: must not call the network.
  virtual std::optional<std::pair<LaunchTime, uint64_t>> FindLaunch(uint64_t key, uint64_t sequence) = 0;
};

}  // namespace jaxring
