#include "engine/records/finite.h"

#include <algorithm>
#include <cstring>

namespace jaxring {
namespace {

// An element is not finite if all bits of `exponent` are set, and NaN if any bit of `mantissa` is set, too.
template <class Bits>
std::optional<NonFinite> First(const void* data, uint64_t elements, Bits exponent, Bits mantissa) {
  constexpr uint64_t kBlock = 512;
  const char* from = static_cast<const char*>(data);
  auto at = [from](uint64_t i) {
    Bits bits;
    std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
    return bits;
  };
  for (uint64_t begin = 0; begin < elements; begin += kBlock) {
    const uint64_t end = std::min(elements, begin + kBlock);
    unsigned found = 0;  // without a branch, so that the compiler vectorises the loop
    for (uint64_t i = begin; i < end; ++i) found |= unsigned{(at(i) & exponent) == exponent};
    if (found == 0) continue;
    for (uint64_t i = begin; i < end; ++i) {
      if ((at(i) & exponent) == exponent) return NonFinite{i, (at(i) & mantissa) != 0};
    }
  }
  return std::nullopt;
}

std::string Describe(const Operation& op, const char* which, int rank, uint64_t element, bool nan) {
  return op.What() + ": the " + which + " of " + op.plan().ranks[rank].name + " holds " + (nan ? "NaN" : "infinity") +
         ", first at element " + std::to_string(element);
}

}  // namespace

std::optional<NonFinite> FirstNonFinite(DType dtype, const void* data, uint64_t elements) {
  std::optional<NonFinite> found;
  switch (dtype) {
    case DType::kF8E4M3FN:  // has no infinity, and one NaN
      return First<uint8_t>(data, elements, 0x7F, 0x7F);
    case DType::kF8E5M2:
      return First<uint8_t>(data, elements, 0x7C, 0x03);
    case DType::kF16:
      return First<uint16_t>(data, elements, 0x7C00, 0x03FF);
    case DType::kBF16:
      return First<uint16_t>(data, elements, 0x7F80, 0x007F);
    case DType::kF32:
      return First<uint32_t>(data, elements, 0x7F800000, 0x007FFFFF);
    case DType::kF64:
      return First<uint64_t>(data, elements, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF);
    case DType::kC64:
      found = FirstNonFinite(DType::kF32, data, 2 * elements);
      break;
    case DType::kC128:
      found = FirstNonFinite(DType::kF64, data, 2 * elements);
      break;
    default:
      return std::nullopt;
  }
  if (found) found->element /= 2;
  return found;
}

std::string NonFiniteOperand(Operation& op) {
  const Plan& plan = op.plan();
  if (plan.half == Half::kRecv) return "";
  for (const Participant& participant : op.participants()) {
    auto check = [&](uint64_t begin, uint64_t elements) -> std::string {
      const char* data = static_cast<const char*>(participant.in) + begin * plan.element_bytes;
      const auto found = FirstNonFinite(plan.dtype, data, elements);
      return found ? Describe(op, "operand", participant.rank, begin + found->element, found->nan) + "." : "";
    };
    if (!participant.extents) {
      if (std::string text = check(0, plan.in_blocks * plan.block_elements); !text.empty()) return text;
      continue;
    }
    for (size_t i = 0; i < participant.extents->in_offset.size(); ++i) {
      std::string text = check(participant.extents->in_offset[i], participant.extents->in_length[i]);
      if (!text.empty()) return text;
    }
  }
  return "";
}

std::string NonFiniteResult(Operation& op) {
  const Plan& plan = op.plan();
  if (plan.kernels == nullptr) return "";
  for (const Participant& participant : op.participants()) {
    const auto found = FirstNonFinite(plan.dtype, participant.out, plan.out_blocks * plan.block_elements);
    if (!found) continue;
    return Describe(op, "result", participant.rank, found->element, found->nan) +
           ", and no operand of this process's ranks does: the operation overflowed, or an operand elsewhere does, "
           "which its process says.";
  }
  return "";
}

}  // namespace jaxring
