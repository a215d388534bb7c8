// Inputs of arbitrary bits, and the CPU engine's results for them, which the CUDA engine must match.
#pragma once

#include <string>
#include <vector>

#include "tests/support/job.h"
#include "tests/support/values.h"

namespace jaxring::test {

// One buffer of random bits for each rank, which include infinities, NaN, subnormals and zeros of both signs.
std::vector<Buffer> AnyBits(const Call& call, uint64_t seed);
// Runs the call on the CPU engine and returns each rank's output.
std::vector<Buffer> OnCpu(Call& call, const std::vector<Buffer>& inputs);
// Fails where an element differs in its bits, except that any NaN equals any other. `how` is part of the message.
void CheckSame(const Call& call, const std::string& how, const std::vector<Buffer>& got,
               const std::vector<Buffer>& want);
Settings SettingsOf(const Schedule& schedule, DType dtype, ReduceOp op, bool mean, uint64_t block);

}  // namespace jaxring::test
