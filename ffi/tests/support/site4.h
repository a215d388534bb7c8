// A call of four ranks, for tests of error messages.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/job.h"
#include "tests/support/schedules.h"
#include "tests/support/values.h"

namespace jaxring::test {

inline bool Says(const Status& status, const std::string& text) {
  const bool says = status.message.find(text) != std::string::npos;
  if (!says) std::cerr << "'" << status.message << "' does not say '" << text << "'" << std::endl;
  return says;
}

// A call that can be executed repeatedly, by some of its ranks or all.
struct Site4 {
  Site4(Job* job, const char* name, Settings settings, double site_timeout_s = 60)
      : call(job, Find(name), std::move(settings), site_timeout_s), inputs(Inputs(call, 1)) {}
  std::vector<Status> Run(const std::vector<int>& ranks) {
    std::vector<Buffer> outputs = Outputs(call);
    Ends ends(call.Describe());
    for (int rank : ranks) call.Arrive(rank, run, inputs[rank].data(), outputs[rank].data(), ends.Expect());
    ++run;
    std::vector<Status> statuses = ends.Wait();
    Reference reference(call, inputs);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (statuses[i].ok()) reference.Check(ranks[i], outputs[ranks[i]]);
    }
    return statuses;
  }
  void RunOk() {
    for (const Status& status : Run({0, 1, 2, 3})) CHECK(status.ok() || Says(status, "no failure"));
  }
  Call call;
  std::vector<Buffer> inputs;
  int run = 0;
};

inline Settings Sized(uint64_t block, double timeout_s = 60, Protocol protocol = Protocol::kSimple) {
  Settings settings;
  settings.block = block;
  settings.timeout_s = timeout_s;
  settings.protocol = protocol;
  return settings;
}

// The arrival of a rank at a site with operands of its own, which live until `done` is called. Its device is its rank.
template <typename Data>
Arrival Arriving(int rank, int64_t run, Data& in, Data& out, Completion done) {
  Arrival arrival;
  arrival.partition = arrival.device = rank;
  arrival.run_id = run;
  arrival.participant.in = in.data();
  arrival.participant.out = out.data();
  arrival.participant.done = std::move(done);
  arrival.in_bytes = in.size() * sizeof *in.data();
  arrival.out_bytes = out.size() * sizeof *out.data();
  return arrival;
}

}  // namespace jaxring::test
