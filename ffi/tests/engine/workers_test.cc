// Worker threads where the system gives fewer than are asked for.
#include "engine/workers/workers.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/values.h"

namespace {
std::atomic<int> threads_left{INT_MAX};  // how many may still be started
}  // namespace

// Takes the place of the system's in all of this process.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) <= 0) return EAGAIN;
  return real(thread, attributes, run, argument);
}

namespace jaxring::test {
namespace {

// Starts the workers where so many threads can be started. Returns the error, or "".
std::string Start(Job& job, int threads) {
  std::string why;
  threads_left = threads;
  try {
    job.engine(0).workers().Start();
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  threads_left = INT_MAX;
  return why;
}

// The first execution goes to the workers, since it waits for its plan.
void CheckWorks(Job& job) {
  Settings settings;
  settings.block = 100;
  Call call(&job, Find("all_reduce direct 1x4 x1"), settings);
  const auto inputs = Inputs(call, 1);
  auto outputs = Outputs(call);
  Ends ends(call.Describe());
  for (int rank = 0; rank < 4; ++rank) call.Arrive(rank, 0, inputs[rank].data(), outputs[rank].data(), ends.Expect());
  ends.WaitOk();
  Reference reference(call, inputs);
  for (int rank = 0; rank < 4; ++rank) reference.Check(rank, outputs[rank]);
}

CASE("one worker thread does the work of all") {
  Job job(1, Wire::kShared);
  CHECK_EQ(Start(job, 1), std::string());
  CheckWorks(job);
}

CASE("where there is none the error says what to do, and the next call starts them") {
  Job job(1, Wire::kShared);
  const std::string why = Start(job, 0);
  CHECK(why.find("no worker thread can be started: ") == 0);
  CHECK(why.find("ulimit -u") != std::string::npos);
  CHECK_EQ(Start(job, INT_MAX), std::string());
  CheckWorks(job);
}

}  // namespace
}  // namespace jaxring::test
