// What the tests of epilogues have in common.
#pragma once

#include "tests/support/schedules.h"

namespace jaxring::test {

// With Slots a warp takes 512 elements at a time, 256 of a dtype of 8 bytes.
inline constexpr uint64_t kLonger = 6;

// The schedule with its epilogue on the steps that complete values, as jaxring/plan/epilogue.py has it.
inline Schedule WithEpilogue(const Schedule& schedule) {
  Schedule with = schedule;
  for (RankTable& table : with.tables) {
    for (Step& step : table.steps) {
      if (step.flags & StepFlag::kFinal) step.flags |= StepFlag::kEpilogue;
    }
  }
  return with;
}

}  // namespace jaxring::test
