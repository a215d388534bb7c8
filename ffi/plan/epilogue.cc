#include "plan/epilogue.h"

#include <algorithm>
#include <stdexcept>

namespace jaxring {
namespace {

// The kernels that load and store a float dtype which accumulates in `accumulator_bytes`.
const Kernels* FloatKernels(DType dtype, size_t accumulator_bytes) {
  const bool is_float = dtype >= DType::kF8E4M3FN && dtype <= DType::kF64;
  const Kernels* kernels = is_float ? FindKernels(dtype, ReduceOp::kSum) : nullptr;
  if (kernels == nullptr || kernels->accumulator_bytes != accumulator_bytes) {
    throw std::invalid_argument("an epilogue's dtype is no float, or accumulates otherwise than the data");
  }
  return kernels;
}

}  // namespace

std::shared_ptr<const PlanEpilogue> MakeEpilogue(const std::vector<std::string>& functions, DType data, DType result,
                                                 const std::vector<DType>& further) {
  auto epilogue = std::make_shared<PlanEpilogue>();
  const size_t wide = FactsOf(data).accumulator_bytes;
  FloatKernels(data, wide);
  epilogue->doubles = wide == sizeof(double);
  epilogue->accumulators = FindKernels(epilogue->doubles ? DType::kF64 : DType::kF32, ReduceOp::kSum);
  epilogue->result_dtype = result;
  epilogue->result = FloatKernels(result, wide);
  if (further.size() > kMostFurther) throw std::invalid_argument("an epilogue has too many operands");
  for (const std::string& name : functions) {
    const std::span<const Epilogue> all = Epilogues();
    const auto row = std::find_if(all.begin(), all.end(), [&name](const Epilogue& each) { return name == each.name; });
    if (row == all.end()) throw std::invalid_argument("there is no epilogue '" + name + "'");
    epilogue->stages.push_back({&*row, epilogue->parameters, epilogue->further.size()});
    epilogue->parameters += row->parameters;
    for (int i = 0; i < row->operands + row->states; ++i) {
      const size_t place = epilogue->further.size();
      if (place == further.size()) throw std::invalid_argument("the epilogue '" + name + "' needs more operands");
      const bool is_state = i >= row->operands;
      epilogue->further.push_back(
          {FloatKernels(further[place], wide), is_state ? static_cast<int>(epilogue->states++) : -1, further[place]});
    }
  }
  if (epilogue->further.size() != further.size())
    throw std::invalid_argument("an epilogue has operands that no function takes");
  return epilogue;
}

}  // namespace jaxring
