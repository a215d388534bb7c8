// An all-reduce of int32 by the processes of a forked job, one rank each, executed again and again.
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
  // Calls of one process differ in their `spec`, those of one spec belong together.
  ForkedCall(Engine* engine, const Schedule& schedule, int process, uint64_t block, std::string spec = "call");
  // What this process's rank is told; kInternal for a wrong sum.
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

// What a forked process does instead of Python's planning thread, until it ends.
std::thread Answering(Engine* engine, int process, Job::Planner planner);

}  // namespace jaxring::test
