// What the interpreter does with the data of a slice: one pass from its sources to its targets, or bulk copies instead.
#pragma once

#include "cuda/experimental/bulk.h"
#include "plan/schedule.h"

namespace jaxring::cuda {

// A slice of that many bytes, all whose sources and targets hold the same elements.
JAXRING_DEVICE Work WorkOn(const Lane& lane, uint32_t sources, uint32_t targets, uint64_t bytes) {
  Work work;
  work.source = lane.shared.sources;
  work.target = lane.shared.targets;
  work.sources = sources;
  work.targets = targets;
  work.bytes = bytes;
  work.packs = static_cast<uint32_t>((bytes + kPackBytes - 1) / kPackBytes);
  return work;
}
// `addresses`: the OR of those of elements in memory. Slots and scratch begin with whole packs.
JAXRING_DEVICE void Align(uint64_t addresses, Work* work) {
  work->aligned = addresses % kPackBytes == 0;
  addresses |= work->bytes;
  work->log2 = addresses & 1 ? 0 : addresses & 2 ? 1 : 2;
}

JAXRING_DEVICE bool IsMessage(const Operand& operand) {
  return operand.form == Form::kMessage || operand.form == Form::kPartialMessage;
}
// How many vectors a pack takes in a message.
JAXRING_DEVICE uint32_t VectorsOf(const Operand& message, uint32_t widening) {
  return message.form == Form::kPartialMessage ? widening : 1;
}
template <class Protocol>
JAXRING_DEVICE void CleanTargets(const Lane& lane, uint32_t targets, uint32_t packs, uint32_t widening) {
  for (uint32_t i = 0; i < targets; ++i) {
    const Operand& target = lane.shared.targets[i];
    if (IsMessage(target)) Protocol::Clean(lane.args, target, packs, VectorsOf(target, widening));
  }
}

JAXRING_DEVICE void FillZeros(const Lane& lane, const Work& work) {
  char* to = lane.shared.targets[0].at;
  for (uint32_t pack = ThreadIndex(); pack < work.packs; pack += Threads()) {
    const uint64_t at = static_cast<uint64_t>(pack) * kPackBytes, rest = work.bytes - at;
    if (work.aligned && rest >= kPackBytes) {
      Store(to + at, Vec{});
    } else {
      StoreEdge(to + at, Vec{}, rest < kPackBytes ? static_cast<uint32_t>(rest) : kPackBytes, work.log2, false);
    }
  }
}

// The slices of launches without an epilogue. The widening of kWiden 0, for the schedules that only move, is 1.
template <class ProtocolOf, int kWiden>
class PlainSlices {
 public:
  using Protocol = ProtocolOf;
  static constexpr bool kBulk = Protocol::kBulk;

  JAXRING_DEVICE explicit PlainSlices(const Args& args)
      : how_{args.call.dtype, CodeOf(args.call.dtype, args.call.op), args.call.divisor},
        element_(BytesOf(args.call.dtype)) {}

  JAXRING_DEVICE static constexpr uint32_t Widening() { return kWiden == 0 ? 1 : kWiden; }
  // Bytes of an element of the data.
  JAXRING_DEVICE uint32_t Element() const { return element_; }
  // The same where a step reads whole values, and where it writes them.
  JAXRING_DEVICE uint32_t SourceElement(const Step&) const { return element_; }
  JAXRING_DEVICE uint32_t TargetElement(const Step&) const { return element_; }

  // A slice of a step, whose operands are prepared. False if it gave up waiting. Last: the slice's offset in the
  // output.
  JAXRING_DEVICE bool Pass(const Lane& lane, const Step& step, uint32_t sources, uint32_t targets, uint64_t elements,
                           uint64_t) const {
    const Args& args = lane.args;
    Work work = WorkOn(lane, sources, targets, elements * element_);
    work.divide = (step.flags & StepFlag::kFinal) && args.call.divisor != 0;
    uint64_t addresses = 0;
    work.moves = !work.divide && sources == 1;
    for (uint32_t i = 0; i < sources; ++i) {
      const Operand& source = lane.shared.sources[i];
      if (source.form == Form::kRaw) addresses |= reinterpret_cast<uint64_t>(source.at);
      work.moves = work.moves && (Widening() == 1 || source.form == Form::kRaw || source.form == Form::kMessage);
    }
    for (uint32_t i = 0; i < targets; ++i) {
      const Operand& target = lane.shared.targets[i];
      const bool raw = target.form == Form::kRaw || target.form == Form::kFar;
      if (raw) addresses |= reinterpret_cast<uint64_t>(target.at);
      work.moves = work.moves && (Widening() == 1 || raw || target.form == Form::kMessage);
    }
    Align(addresses, &work);
    if (step.flags & StepFlag::kZero) {
      FillZeros(lane, work);
      return true;
    }
    const bool done = PassOrCopy<Protocol, kWiden>(lane, how_, work);
    CleanTargets<Protocol>(lane, targets, work.packs, Widening());
    if constexpr (kBulk) FinishBulk(args);
    return done;
  }

 private:
  Arithmetic how_;
  uint32_t element_;
};

}  // namespace jaxring::cuda
