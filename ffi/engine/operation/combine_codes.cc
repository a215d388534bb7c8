// Combines what a step of an all-reduce in codes has: values become codes where they are sent, and codes values where
// they arrive, so that neither lies in memory between.
#include <algorithm>

#include "engine/operation/combine.h"
#include "engine/operation/float_mode.h"
#include "engine/operation/pages.h"
#include "quantize/quantize.h"

namespace jaxring {
namespace {

// Elements are counted from the operand's beginning on the first hop, and on the second from that of the rank's half.
Rounding RoundingAt(const Plan& plan, const CodesAt& at, uint32_t hop) {
  const uint64_t half = hop == 0 ? 0 : plan.PieceBegin(static_cast<uint64_t>(at.rank * plan.shape.pieces / 2));
  const uint64_t blocks = (at.first - half) / kQuantBlock;
  return RoundingOf(at.buffers.key, plan.codes->stochastic, hop, plan.codes->first_word + blocks * kQuantWords);
}

}  // namespace

void CombineCodes(const Plan& plan, const std::vector<Source>& sources, const std::vector<Destination>& destinations,
                  const CodesAt& at, uint64_t elements) {
  const QuantFormat format = plan.codes->format;
  float* error = at.buffers.error == nullptr ? nullptr : at.buffers.error + at.first;
  if (!plan.sends_codes()) {
    if (error != nullptr) std::fill_n(error, elements, 0.0f);
    return Combine(plan, sources, destinations, elements, sizeof(float), true);
  }
  const ScopedFloatMode mode(kIeeeFloatMode);
  const Destination& to = destinations.front();
  if (to.fresh) PopulatePages(to.data, elements * sizeof(float));
  if (sources.size() == 2) {
    const auto own = static_cast<size_t>(at.rank), other = 1 - own;
    const QuantShape shape = {format, 2, elements, {own, true}};
    SumRowsQuantized(shape, static_cast<char*>(destinations.back().data), error,
                     {static_cast<float*>(to.data), to.stream}, static_cast<const char*>(sources[other].data),
                     plan.data.divisor, {static_cast<const float*>(sources[own].data), elements},
                     RoundingAt(plan, at, 1));
    // A mean's error is added to one rank's next value, of which the mean takes a part.
    for (uint64_t i = 0; error != nullptr && plan.data.divisor != 0 && i < elements; ++i) error[i] *= 2;
    return;
  }
  if (sources.front().partial) {
    DequantizeRows({format, 1, elements}, {static_cast<float*>(to.data), to.stream},
                   static_cast<const char*>(sources.front().data), elements);
  } else {
    QuantizeRows({format, 1, elements}, static_cast<char*>(to.data), error,
                 static_cast<const float*>(sources.front().data), elements, RoundingAt(plan, at, 0));
  }
}

}  // namespace jaxring
