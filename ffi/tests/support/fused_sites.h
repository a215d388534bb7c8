// A fused call of several collectives of the same kind and size, with one site in each process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/job.h"

namespace jaxring::test {

class FusedSites {
 public:
  // Each collective has `settings.block` values of int32 for each rank.
  FusedSites(Job* job, const Schedule& schedule, Settings settings, int collectives, double site_timeout_s = 60)
      : job_(job), schedule_(schedule), settings_(std::move(settings)) {
    SiteSpec spec{{}, {}, schedule.ranks(), site_timeout_s, {}};
    for (int rank = 0; rank < schedule.ranks(); ++rank) spec.groups.push_back(rank);
    const std::string name = "fused call " + std::to_string(job->NextKey()) + " ";
    for (int i = 0; i < collectives; ++i) {
      keys_.push_back(job->NextKey());
      spec.specs.push_back(name + std::to_string(i));
      spec.ordinals.push_back(0);
      job->Answer(spec.specs.back(), [this, i](int process, const PlanRequest& request) {
        request.Resolve(MakeOne(i, process, request));
      });
    }
    for (int p = 0; p < schedule.processes(); ++p) sites_.push_back(Site::Make(&job->engine(p), spec));
  }

  // Sets how one of the collectives is planned from now on.
  void Answer(int collective, Job::Planner planner) {
    job_->Answer(sites_[0]->spec().specs[collective], std::move(planner));
  }
  uint64_t key(int collective) const { return keys_[collective]; }
  std::shared_ptr<jaxring::Plan> MakeOne(int collective, int process, const PlanRequest& request) const {
    Settings one = settings_;
    one.key = keys_[collective];
    auto plan = MakePlan(schedule_, one, process, job_->channels());
    plan->what += ", collective " + std::to_string(collective);
    plan->epoch = request.epoch;
    return plan;
  }

  // A rank's operands, one vector for each collective, which are reduced in place.
  using Data = std::vector<std::vector<int32_t>>;
  Data Values(int rank, int run) const {
    Data data(keys_.size());
    for (size_t i = 0; i < data.size(); ++i) {
      for (uint64_t k = 0; k < settings_.block; ++k) data[i].push_back(Value(i, k) + run * (rank + 1));
    }
    return data;
  }
  void Check(const Data& data, int run) const {
    const int n = schedule_.ranks();
    for (size_t i = 0; i < data.size(); ++i) {
      for (uint64_t k = 0; k < data[i].size(); ++k) CHECK_EQ(data[i][k], Value(i, k) * n + run * n * (n + 1) / 2);
    }
  }
  void Arrive(int rank, int64_t run, Data& data, Completion done) {
    const uint64_t bytes = settings_.block * sizeof(int32_t);
    Arrival arrival{rank, rank, run, {}, bytes, bytes, {}};
    arrival.participant.in = arrival.participant.out = data[0].data();
    arrival.further = std::make_unique<Arrival::Buffers[]>(data.size() - 1);
    for (size_t i = 1; i < data.size(); ++i) {
      arrival.further[i - 1] = {data[i].data(), data[i].data(), bytes, bytes};
    }
    arrival.participant.done = std::move(done);
    sites_[schedule_.placement[rank]]->Arrive(std::move(arrival));
  }
  // Executes a run with all of its ranks, or some, and returns their statuses. Checks the sums of those that succeed.
  std::vector<Status> Run(int run, const std::vector<int>& ranks) {
    std::vector<Data> data;
    for (int rank : ranks) data.push_back(Values(rank, run));
    Ends ends(schedule_.name + ", run " + std::to_string(run));
    for (size_t i = 0; i < ranks.size(); ++i) Arrive(ranks[i], run, data[i], ends.Expect());
    std::vector<Status> statuses = ends.Wait();
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (statuses[i].ok()) Check(data[i], run);
    }
    return statuses;
  }

 private:
  static int32_t Value(size_t collective, uint64_t k) { return static_cast<int32_t>(k * 8 + collective); }

  Job* job_;
  const Schedule& schedule_;
  const Settings settings_;
  std::vector<uint64_t> keys_;
  std::vector<std::shared_ptr<Site>> sites_;
};

}  // namespace jaxring::test
