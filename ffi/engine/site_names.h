// What tells call sites with equal specs apart, as all processes see it.
//
// One lowered call may be several of a compiled program: an inner jit that is called twice is lowered once. XLA
// instantiates them in one order in every process, so they are numbered in that order, from nought in each program.
// Which instantiations are of one program XLA does not say; Python says when one is compiled. So a call that one
// process alone compiles more often has the same number there as elsewhere, whether these programs run or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jaxring {

// A program that has these specs is compiled: whatever is instantiated with one of them from now on is another's.
void EndProgram(const std::vector<std::string>& specs);

// A call is instantiated that has these collectives' specs; `call` is all of them. Gives each one's ordinal. What a
// collective shares its call with is in it: the executions of a call are counted together.
std::vector<uint64_t> OrdinalsOfCall(const std::string& call, const std::vector<std::string>& specs);

}  // namespace jaxring
