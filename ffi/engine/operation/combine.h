// Computes a step's value: one pass over its sources into all of its destinations, each in its own element type.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/operation/operation.h"
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
// `elements`, of `bytes` each where they are not partial; a destination may be exactly one of the sources.
[[gnu::hot]] void Combine(const Plan& plan, const std::vector<Source>& sources,
                          const std::vector<Destination>& destinations, uint64_t elements, size_t bytes, bool final);

// A rank's buffers of the plan's epilogue, and which of their elements is the first of a step's.
struct EpilogueAt {
  const EpilogueBuffers& buffers;
  uint64_t first;
};

// As Combine of a final value, with the plan's epilogue. Everything is read and written once: what lies between stays
// in the first-level cache. Destinations hold results, and none is partial.
[[gnu::hot]] void CombineWithEpilogue(const Plan& plan, const std::vector<Source>& sources,
                                      const std::vector<Destination>& destinations, const EpilogueAt& at,
                                      uint64_t elements);

// A rank's buffers of a plan in codes, and which of their elements is the first of a step's.
struct CodesAt {
  const CodeBuffers& buffers;
  int rank;
  uint64_t first;
};

// What a step of a plan in codes makes of `elements`: without a message the codes of its value; of the other rank's
// codes and the own value, in the order of the ranks, the codes of the sum, and what they stand for in the first
// destination; of one message what its codes stand for.
[[gnu::hot]] void CombineCodes(const Plan& plan, const std::vector<Source>& sources,
                               const std::vector<Destination>& destinations, const CodesAt& at, uint64_t elements);

}  // namespace jaxring
