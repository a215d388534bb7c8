#include "engine/operation/combine.h"

#include <cstring>

#include "engine/operation/float_mode.h"
#include "engine/operation/pages.h"
#include "reduce/copy.h"

namespace jaxring {
namespace {

// The accumulators of one block stay in the first-level cache.
constexpr uint64_t kBlock = 1024;

template <class Items>
bool AllRaw(const Items& items) {
  for (const auto& item : items) {
    if (item.partial) return false;
  }
  return true;
}

void CombineWide(const Plan& plan, const std::vector<Source>& sources, const std::vector<Destination>& destinations,
                 uint64_t elements, uint64_t divisor) {
  const Kernels& kernels = *plan.data.kernels;
  const ScopedFloatMode mode(kIeeeFloatMode);
  const size_t raw = plan.data.element_bytes, wide = plan.data.partial_bytes;
  alignas(64) char accumulator[kBlock * 16], result[kBlock * 16];
  bool streamed = false;
  for (uint64_t begin = 0; begin < elements; begin += kBlock) {
    uint64_t n = std::min(kBlock, elements - begin);
    bool first = true;
    for (const Source& source : sources) {
      const char* data = static_cast<const char*>(source.data) + begin * (source.partial ? wide : raw);
      if (source.partial) {
        first ? static_cast<void>(std::memcpy(accumulator, data, n * wide))
              : kernels.fold_partial(accumulator, data, n);
      } else {
        (first ? kernels.load : kernels.fold)(accumulator, data, n);
      }
      first = false;
    }
    for (const Destination& destination : destinations) {
      char* data = static_cast<char*>(destination.data) + begin * (destination.partial ? wide : raw);
      if (destination.partial) {
        CopyBlock(data, accumulator, n * wide, destination.stream);
      } else if (destination.stream) {
        kernels.store(result, accumulator, n, divisor);
        CopyBlock(data, result, n * raw, true);
      } else {
        kernels.store(data, accumulator, n, divisor);
      }
      streamed |= destination.stream;
    }
  }
  if (streamed) StreamFence();
}

}  // namespace

void Combine(const Plan& plan, const std::vector<Source>& sources, const std::vector<Destination>& destinations,
             uint64_t elements, size_t bytes, bool final) {
  const uint64_t divisor = final ? plan.data.divisor : 0;
  for (const Destination& destination : destinations) {
    if (destination.fresh) PopulatePages(destination.data, elements * bytes);
  }
  const bool narrow = plan.data.partial_bytes == plan.data.element_bytes || (AllRaw(sources) && AllRaw(destinations));
  if (!narrow) return CombineWide(plan, sources, destinations, elements, divisor);
  thread_local struct {
    std::vector<const void*> in;
    std::vector<void*> kept, streamed;
  } pointers;
  auto& [in, kept, streamed] = pointers;
  in.clear();
  kept.clear();
  streamed.clear();
  for (const Source& source : sources) in.push_back(source.data);
  for (const Destination& destination : destinations) {
    (destination.stream ? streamed : kept).push_back(destination.data);
  }
  // If there are both, the streamed destinations are copied from a kept one, which is in the cache by then.
  std::vector<void*>& first = kept.empty() ? streamed : kept;
  const bool exact = plan.data.exact && final;
  if (sources.size() == 1 && divisor == 0 && !exact) {
    CopyMany(first.data(), first.size(), in[0], elements * bytes, kept.empty());
  } else {
    const ScopedFloatMode mode(kIeeeFloatMode);
    (exact ? plan.data.kernels->sum_exactly : plan.data.kernels->fold_many)(first.data(), first.size(), in.data(),
                                                                            in.size(), elements, divisor, kept.empty());
  }
  if (streamed.empty()) return;
  if (!kept.empty()) CopyMany(streamed.data(), streamed.size(), kept[0], elements * bytes, true);
  StreamFence();
}

}  // namespace jaxring
