// An all-reduce of int32 by the processes of a forked job, one rank each, which is executed repeatedly.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "engine/site.h"
#include "tests/support/job.h"
#include "tests/support/schedules.h"

namespace jaxring::test {

class ForkedCall {
 public:
  // The calls of one process have different specs. Calls with equal specs in different processes belong together.
  ForkedCall(Engine* engine, const Schedule& schedule, int process, uint64_t block, std::string spec = "call");
  // The status of this process's rank; kInternal for a wrong sum.
  Status Run();

 private:
  Engine* const engine_;
  const Schedule& schedule_;
  const int process_;
  const uint64_t block_;
  const std::string spec_;
  std::shared_ptr<Site> site_;
  int64_t run_ = 1;
};

// Stands in for Python's planning thread in a forked process, until that ends.
std::thread Answering(Engine* engine, int process, Job::Planner planner);

}  // namespace jaxring::test
