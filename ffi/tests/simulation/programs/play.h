// Plays what a seed says: a job of a few processes, calls of its ranks, the order of everything, and none, one
// or two troubles; then judges what each rank got.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/virtual_time.h"

namespace jaxring::test {

struct Played {
  std::string fault;      // what is wrong; empty: nothing
  std::string trouble;    // what the seed has chosen
  uint64_t hash = 0;      // of all that happened
  uint64_t failures = 0;  // ranks' executions that ended with an error, as they should
  // How many there were that a mutation could take away.
  uint64_t wake_ups = 0, credits = 0, notices = 0;
};

Played Play(uint64_t seed, Mutation mutation = {}, bool show = false);

}  // namespace jaxring::test
