// Makes a step's value: one pass over its sources into all of its destinations, each in its own form.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace jaxring {

// `partial` elements are accumulators; the others have the data's dtype. `stream` goes around the caches: for what is
// large and not read soon. `fresh`: pages may be missing, and are brought in first.
struct Source {
  const void* data;
  bool partial;
};
struct Destination {
  void* data;
  bool partial;
  bool stream = false, fresh = false;
};

// Folds the sources from left to right. With `final`, mean's division is applied. Sources and destinations hold
// `elements`; a destination may be exactly one of the sources.
[[gnu::hot]] void Combine(const Plan& plan, const std::vector<Source>& sources,
                          const std::vector<Destination>& destinations, uint64_t elements, bool final);

}  // namespace jaxring
