// The engine of a process, on the connections of the system.
#pragma once

#include "engine/engine.h"
#include "network/system_network.h"

namespace jaxring {

class ProcessEngine final : public Engine {
 public:
  explicit ProcessEngine(const EngineOptions& options)
      : Engine(options, [&options](NetworkClient* client) {
          return std::make_unique<SystemNetwork>(
              NetworkOptions{options.slot_bytes, options.link_timeout_s, options.faults}, client);
        }) {}
  SystemNetwork& network() { return static_cast<SystemNetwork&>(Engine::network()); }
};

}  // namespace jaxring
