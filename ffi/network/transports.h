// The transports whose links are set up by offers.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "transport/core/offered.h"

namespace jaxring {

using OfferedTransports = std::map<std::string, std::unique_ptr<OfferedTransport>>;

// One of each, by the name that jaxring/world/transports knows it by.
OfferedTransports MakeOfferedTransports(const OfferedOptions& options);

}  // namespace jaxring
