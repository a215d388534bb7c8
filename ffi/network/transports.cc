#include "network/transports.h"

#include "transport/plugin/plugin_link.h"
#include "transport/verbs/verbs_join.h"

namespace jaxring {

OfferedTransports MakeOfferedTransports(const OfferedOptions& options) {
  OfferedTransports all;
  all.emplace("plugin", std::make_unique<PluginLinks>(options));
  all.emplace("verbs", std::make_unique<VerbsJoin>(options));
  return all;
}

}  // namespace jaxring
