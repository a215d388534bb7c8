// Combines the last contributions to a value and applies the plan's epilogue to it, block after block in the L1 cache.
#include <algorithm>
#include <vector>

#include "engine/operation/combine.h"
#include "engine/operation/float_mode.h"
#include "engine/operation/pages.h"

namespace jaxring {
namespace {

// Elements of a block: what a function reads and writes of them has room in the L1 cache.
constexpr size_t kEpilogueElements = 1024;
// Bytes of a block, with room for a function that goes on to the end of a vector.
constexpr size_t kEpilogueBytes = kEpilogueElements * sizeof(double) + 64;

struct EpilogueBlocks {
  alignas(64) char values[kEpilogueBytes];
  alignas(64) char results[kEpilogueBytes];  // values rounded to the result's dtype
  alignas(64) char further[kMostFurther][kEpilogueBytes];
  std::vector<const void*> sources;
  std::vector<void*> kept, streamed;
};

// Begins to fetch the block from `begin` on, while the one before it is computed: the processor's own prefetching stops
// at the end of a page, which is as long as a block.
void FetchBlock(const Plan& plan, const std::vector<Source>& sources, const EpilogueAt& at, uint64_t begin,
                uint64_t elements) {
  const uint64_t n = std::min<uint64_t>(kEpilogueElements, elements - begin);
  const auto fetch = [n](const void* data, uint64_t first, size_t element) {
    const char* from = static_cast<const char*>(data) + first * element;
    for (uint64_t line = 0; line < n * element; line += 64) __builtin_prefetch(from + line);
  };
  for (const Source& source : sources)
    fetch(source.data, begin, source.partial ? plan.data.partial_bytes : plan.data.element_bytes);
  for (size_t i = 0; i < plan.epilogue->further.size(); ++i) {
    fetch(at.buffers.further[i].data, at.first + begin, plan.epilogue->further[i].kernels->element_bytes);
  }
}

// Leaves the fold of the sources' elements [begin, begin + n), divided for a mean, in `work.values`.
void FoldBlock(const Plan& plan, const std::vector<Source>& sources, uint64_t begin, size_t n, EpilogueBlocks& work) {
  const Kernels& kernels = *plan.data.kernels;
  const size_t raw = plan.data.element_bytes, wide = plan.data.partial_bytes;
  auto block_of = [&](const Source& source) {
    return static_cast<const char*>(source.data) + begin * (source.partial ? wide : raw);
  };
  void* values = work.values;
  if (raw == wide || plan.data.exact) {
    work.sources.clear();
    for (const Source& source : sources) work.sources.push_back(block_of(source));
    void* to = raw == wide ? work.values : work.results;
    (plan.data.exact ? kernels.sum_exactly : kernels.fold_many)(&to, 1, work.sources.data(), work.sources.size(), n,
                                                                plan.data.divisor, false);
    if (raw != wide) kernels.load(values, to, n);
    return;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    if (i != 0) {
      (source.partial ? kernels.fold_partial : kernels.fold)(values, block_of(source), n);
    } else if (source.partial) {
      std::copy_n(block_of(source), n * wide, work.values);
    } else {
      kernels.load(values, block_of(source), n);
    }
  }
  const void* folded = values;
  if (plan.data.divisor != 0)
    plan.epilogue->accumulators->fold_many(&values, 1, &folded, 1, n, plan.data.divisor, false);
}

// Applies the functions to `work.values`, which stand for the elements from `first` on, and stores the states.
void ApplyFunctions(const PlanEpilogue& epilogue, const EpilogueBuffers& buffers, uint64_t first, size_t n,
                    EpilogueBlocks& work) {
  void* blocks[kMostFurther + 1] = {};
  for (size_t i = 0; i < epilogue.further.size(); ++i) {
    const auto& [kernels, state, dtype] = epilogue.further[i];
    char* from = buffers.further[i].data + first * kernels->element_bytes;
    // Where it lies if it can be read, and overwritten, there: accumulators, and no vector that goes beyond them.
    const bool in_place = state < 0 || buffers.states[static_cast<size_t>(state)].data == buffers.further[i].data;
    const bool whole = kernels->element_bytes == kernels->accumulator_bytes && n * kernels->element_bytes % 64 == 0;
    blocks[i] = in_place && whole ? from : work.further[i];
    if (blocks[i] != from) kernels->load(blocks[i], from, n);
  }
  const size_t lane = epilogue.doubles ? sizeof(double) : sizeof(float);
  for (const PlanEpilogue::Stage& stage : epilogue.stages) {
    const auto apply = epilogue.doubles ? stage.function->on_doubles : stage.function->on_floats;
    apply(work.values, blocks + stage.further, buffers.parameters.data + stage.parameter * lane, n);
  }
  for (size_t i = 0; i < epilogue.further.size(); ++i) {
    const auto& [kernels, state, dtype] = epilogue.further[i];
    if (state < 0) continue;
    char* to = buffers.states[static_cast<size_t>(state)].data + first * kernels->element_bytes;
    if (blocks[i] != to) kernels->store(to, blocks[i], n, 0);
  }
}

}  // namespace

void CombineWithEpilogue(const Plan& plan, const std::vector<Source>& sources,
                         const std::vector<Destination>& destinations, const EpilogueAt& at, uint64_t elements) {
  thread_local EpilogueBlocks work;
  const PlanEpilogue& epilogue = *plan.epilogue;
  const size_t bytes = plan.result_bytes();
  work.kept.clear();
  work.streamed.clear();
  for (const Destination& destination : destinations) {
    if (destination.fresh) PopulatePages(destination.data, elements * bytes);
    (destination.stream ? work.streamed : work.kept).push_back(destination.data);
  }
  const auto copy = [&](std::vector<void*>& to, const void* from, size_t n, bool stream) {
    if (to.empty()) return;
    CopyMany(to.data(), to.size(), from, n * bytes, stream);
    for (void*& each : to) each = static_cast<char*>(each) + n * bytes;
  };
  const ScopedFloatMode mode(kIeeeFloatMode);
  for (uint64_t begin = 0; begin < elements; begin += kEpilogueElements) {
    const size_t n = std::min<uint64_t>(kEpilogueElements, elements - begin);
    FetchBlock(plan, sources, at, begin + n, elements);
    FoldBlock(plan, sources, begin, n, work);
    ApplyFunctions(epilogue, at.buffers, at.first + begin, n, work);
    const void* results = work.values;
    if (bytes != epilogue.result->accumulator_bytes) {
      epilogue.result->store(work.results, work.values, n, 0);
      results = work.results;
    }
    copy(work.kept, results, n, false);
    copy(work.streamed, results, n, true);
  }
  if (!work.streamed.empty()) StreamFence();
}

}  // namespace jaxring
