// Calls on any bits, and what the CPU engine makes of them: what the CUDA engine must give too.
#pragma once

#include <string>
#include <vector>

#include "tests/support/job.h"
#include "tests/support/values.h"

namespace jaxring::test {

// Any bits: infinities, NaN, subnormals and zeros of both signs among them.
std::vector<Buffer> AnyBits(const Call& call, uint64_t seed);
std::vector<Buffer> OnCpu(Call& call, const std::vector<Buffer>& inputs);
void CheckSame(const Call& call, const std::string& how, const std::vector<Buffer>& got,
               const std::vector<Buffer>& want);
Settings SettingsOf(const Schedule& schedule, DType dtype, ReduceOp op, bool mean, uint64_t block);

}  // namespace jaxring::test
