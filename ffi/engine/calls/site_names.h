// Ordinals that distinguish call sites with equal specs, the same in all processes.
//
// One lowered call may become several calls of a compiled program: an inner jit that is called twice is lowered once.
// XLA instantiates them in the same order in every process, so they are numbered in that order, from 0 in each program.
// XLA does not say which instantiations belong to one program; Python says when a program is compiled. So a call keeps
// its ordinal even if one process alone compiles its program again, whether that program runs or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jaxring {

// A program with these specs has been compiled: calls that are instantiated with one of them later belong to another
// program.
void EndProgram(const std::vector<std::string>& specs);

// The ordinals of the collectives of a call that is being instantiated. `specs` are those of the collectives and `call`
// is all of them in one text. An ordinal depends on the whole call, since a call's executions are counted together.
std::vector<uint64_t> OrdinalsOfCall(const std::string& call, const std::vector<std::string>& specs);

}  // namespace jaxring
