// What jaxring._native hands to the CUDA engine's module: a capsule, whose name says what the objects behind it were
// compiled from. A module that was compiled from other headers refuses it, since it would take their members to be
// elsewhere. Each module has its own copy of the functions and static variables behind these headers, so none of these
// may be one that both are to share.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "jaxring_config.h"
#include "jaxring_network_abi.h"
#include "network/network.h"

namespace jaxring {

// Never destroyed, nor is what it names.
struct SharedNetwork {
  Network* network;
  // Has the planning thread look for what the CUDA engine asks of Python.
  std::function<void()> wake_planner;

  static constexpr char kName[] = "jaxring.network " JAXRING_VERSION " " JAXRING_NETWORK_ABI;
  nanobind::capsule ToCapsule() const { return {this, kName}; }
  static const SharedNetwork& Of(const nanobind::capsule& capsule) {
    const std::string name = capsule.name() == nullptr ? "" : capsule.name();
    if (name != kName) {
      throw std::runtime_error("jaxring._native and the CUDA engine's module were not built together: \"" + name +
                               "\" and \"" + kName + "\". Build both again");
    }
    return *static_cast<const SharedNetwork*>(capsule.data(kName));
  }
};

}  // namespace jaxring
