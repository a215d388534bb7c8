// What the engine hands to Python: requests for plans, and messages of other processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "plan/plan.h"

namespace jaxring {

class Site;

// What the Python of another process has sent.
struct ControlMessage {
  int sender;  // its process
  std::string text;
};

// A site's request to Python for the plan of one collective of one group.
struct PlanRequest {
  uint64_t id = 0;
  std::shared_ptr<Site> site;
  int group = 0;
  size_t collective = 0;            // index among the site's collectives
  uint64_t ordinal = 0, epoch = 0;  // of the collective and the site, when it asked

  const std::string& spec() const;
  std::string shown() const;
  // See Site.
  void Resolve(std::shared_ptr<const Plan> plan) const;
  void Identify(uint64_t key, Half half, int process) const;
  void Reject(const Status& status) const;
};

}  // namespace jaxring
