// What the interpreter does with the data of a slice in launches with an epilogue, whose values are floats.
#pragma once

#include "cuda/device/epilogue_pass.h"
#include "cuda/device/ll.h"
#include "cuda/device/simple.h"
#include "cuda/kernels/device_interpreter.h"
#include "cuda/kernels/staging.h"

namespace jaxring::cuda {
namespace {

// This is PlainSlices with an epilogue, for any widening. The protocols are Slots and LL.
template <class ProtocolOf>
class EpilogueSlices {
 public:
  using Protocol = ProtocolOf;
  static constexpr bool kBulk = false;

  JAXRING_DEVICE EpilogueSlices(const EpilogueArgs& epilogue, const Args& args)
      : epilogue_(epilogue),
        how_{args.call.dtype, Code::kSumF32, args.call.divisor},  // its code is not used: see FloatOperation
        widening_(cuda::Widening(args.call.dtype, true)) {}

  JAXRING_DEVICE uint32_t Widening() const { return widening_; }
  JAXRING_DEVICE uint32_t Element() const { return BytesOf(how_.dtype); }
  JAXRING_DEVICE uint32_t SourceElement(const Step& step) const {
    return BytesOf(ReadsResults(step) ? epilogue_.result : how_.dtype);
  }
  JAXRING_DEVICE uint32_t TargetElement(const Step& step) const {
    return BytesOf(WritesResults(step) ? epilogue_.result : how_.dtype);
  }

  JAXRING_DEVICE bool Pass(const Lane& lane, const Step& step, uint32_t sources, uint32_t targets, uint64_t elements,
                           uint64_t offset) const {
    const bool applies = step.flags & StepFlag::kEpilogue;
    const uint32_t element = TargetElement(step);
    typename EpiloguePass<Protocol>::Slice slice{WorkOn(lane, sources, 0, elements * SourceElement(step)),
                                                 WorkOn(lane, 0, targets, elements * element),
                                                 applies ? epilogue_.result : how_.dtype,
                                                 widening_,
                                                 applies ? epilogue_.functions : 0,
                                                 applies,
                                                 offset / element};
    slice.values.divide = (step.flags & StepFlag::kFinal) && how_.divisor != 0;
    uint64_t sources_at = 0, targets_at = 0;
    bool elements_in = true, elements_out = true, accumulators_out = true;
    for (uint32_t i = 0; i < sources; ++i) {
      const Operand& source = lane.shared.sources[i];
      if (IsRaw(source)) sources_at |= reinterpret_cast<uint64_t>(source.at);
      elements_in = elements_in && HoldsElements(source);
    }
    for (uint32_t i = 0; i < targets; ++i) {
      const Operand& target = lane.shared.targets[i];
      if (IsRaw(target)) targets_at |= reinterpret_cast<uint64_t>(target.at);
      if (HoldsElements(target)) {
        accumulators_out = false;
      } else {
        elements_out = false;
      }
    }
    Align(sources_at, &slice.values);
    Align(targets_at, &slice.results);
    if (step.flags & StepFlag::kZero) {
      FillZeros(lane, slice.results);
      return true;
    }
    if (!applies && !slice.values.divide && sources == 1 && elements_in && elements_out) slice.widening = 1;
    slice.buffered = applies || (slice.widening > 1 && !accumulators_out);
    const bool done = EpiloguePass<Protocol>(lane, how_, epilogue_, slice).Run();
    CleanTargets<Protocol>(lane, targets, slice.results.packs, widening_);
    return done;
  }

 private:
  JAXRING_DEVICE static bool IsRaw(const Operand& operand) {
    return operand.form == Form::kRaw || operand.form == Form::kFar;
  }
  JAXRING_DEVICE static bool HoldsElements(const Operand& operand) {
    return IsRaw(operand) || operand.form == Form::kMessage;
  }

  const EpilogueArgs& epilogue_;
  Arithmetic how_;
  uint32_t widening_;
};

template <class Protocol, bool kStages = false>
JAXRING_DEVICE void PlayEpilogueLane(const EpilogueArgs& epilogue, const Args& args, Shared& shared) {
  using Slices = EpilogueSlices<Protocol>;
  if constexpr (kStages) {
    if (!StageIn(args, shared)) return LeaveLaunch(args, false);
    StageOut(args, shared, Player<Slices>(args, shared, Slices(epilogue, args)).Play());
  } else {
    LeaveLaunch(args, Player<Slices>(args, shared, Slices(epilogue, args)).Play());
  }
}

}  // namespace
}  // namespace jaxring::cuda
