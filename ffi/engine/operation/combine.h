// Computes a step's value: one pass over its sources into all of its destinations, each in its own element type.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace jaxring {

// `partial` elements are accumulators; the others have the data's dtype. `stream` selects non-temporal stores, for
// large data that is not read soon. `fresh`: some pages may not be populated yet, and are populated first.
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
