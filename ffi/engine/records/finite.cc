#include "engine/records/finite.h"

#include <algorithm>
#include <cstring>

namespace jaxring {
namespace {

// The first part that is not finite.
template <class Bits>
std::optional<NonFinite> First(const void* data, uint64_t elements, const DTypeFacts& facts) {
  const auto exponent = static_cast<Bits>(facts.not_finite), mantissa = static_cast<Bits>(facts.nan);
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

std::string Describe(const Operation& op, const std::string& which, int rank, uint64_t element, bool nan) {
  return op.What() + ": the " + which + " of " + op.plan().group.ranks[rank].name + " holds " +
         (nan ? "NaN" : "infinity") + ", first at element " + std::to_string(element);
}

}  // namespace

std::optional<NonFinite> FirstNonFinite(DType dtype, const void* data, uint64_t elements) {
  const DTypeFacts& facts = FactsOf(dtype);
  if (facts.not_finite == 0) return std::nullopt;
  std::optional<NonFinite> found;
  const uint64_t parts = elements * facts.parts;
  switch (facts.bytes / facts.parts) {
    case 1:
      found = First<uint8_t>(data, parts, facts);
      break;
    case 2:
      found = First<uint16_t>(data, parts, facts);
      break;
    case 4:
      found = First<uint32_t>(data, parts, facts);
      break;
    default:
      found = First<uint64_t>(data, parts, facts);
  }
  if (found) found->element /= facts.parts;
  return found;
}

std::string NonFiniteOperand(Operation& op) {
  const Plan& plan = op.plan();
  if (plan.half == Half::kRecv) return "";
  for (const Participant& participant : op.participants()) {
    auto check_at = [&](const char* data, uint64_t begin, uint64_t elements) -> std::string {
      const auto found = FirstNonFinite(plan.data.dtype, data, elements);
      return found ? Describe(op, "operand", participant.rank, begin + found->element, found->nan) + "." : "";
    };
    auto check = [&](uint64_t begin, uint64_t elements) {
      return check_at(static_cast<const char*>(participant.in) + begin * plan.data.element_bytes, begin, elements);
    };
    if (participant.blocks) {
      for (int block = 0; block < plan.shape.in_blocks; ++block) {
        std::string text =
            check_at(participant.blocks[block], block * plan.shape.block_elements, plan.shape.block_elements);
        if (!text.empty()) return text;
      }
      continue;
    }
    if (!participant.extents) {
      if (std::string text = check(0, plan.shape.in_blocks * plan.shape.block_elements); !text.empty()) return text;
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
  if (plan.data.kernels == nullptr) return "";
  const uint64_t elements = plan.shape.out_blocks * plan.shape.block_elements;
  const PlanEpilogue* const epilogue = plan.epilogue.get();
  for (const Participant& participant : op.participants()) {
    auto check = [&](const std::string& which, DType dtype, const void* data) -> std::string {
      const auto found = FirstNonFinite(dtype, data, elements);
      if (!found) return "";
      const char* const cause =
          epilogue == nullptr
              ? ": the operation overflowed, or an operand elsewhere does, which its process says."
              : ": the operation overflowed, its epilogue made it or was given it, or an operand elsewhere does, which "
                "its process says.";
      return Describe(op, which, participant.rank, found->element, found->nan) +
             ", and no operand of this process's ranks does" + cause;
    };
    std::string text = check("result", epilogue == nullptr ? plan.data.dtype : epilogue->result_dtype, participant.out);
    for (size_t i = 0; text.empty() && epilogue != nullptr && i < epilogue->further.size(); ++i) {
      const PlanEpilogue::Further& further = epilogue->further[i];
      if (further.state < 0) continue;
      const std::string which = "epilogue's new state " + std::to_string(further.state + 1);
      text = check(which, further.dtype, participant.epilogue->states[static_cast<size_t>(further.state)].data);
    }
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace jaxring
