// A call site: one custom call of one compiled program. It brings together the participants of each execution.
//
// Participants of one process meet by (run, site, group), first come first served for each rank, because a loop runs a
// site again within one run. Operations of different processes meet by the plan's key and a sequence number that counts
// a site's executions.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/control_frames.h"
#include "engine/operation.h"
#include "engine/plan.h"

namespace jaxring {

class Engine;

struct SiteSpec {
  std::string spec;             // JSON for the planner; opaque here
  std::vector<int32_t> groups;  // partition ids, group after group
  int group_size = 1;
  double timeout_s = 300;
  uint64_t ordinal = 0;  // how many sites with the same spec were made before this one
};

struct Arrival {
  int partition = 0;
  int device = 0;
  int64_t run_id = 0;
  Participant participant;
  uint64_t in_bytes = 0, out_bytes = 0;
};

// How many sites with this spec were made before: counts up with each call. Sites with equal specs (an inner jit called
// twice, a program compiled again) are told apart by the order in which they are made, which is one in all processes.
uint64_t NextOrdinal(const std::string& spec);

class Site : public std::enable_shared_from_this<Site> {
 public:
  Site(Engine* engine, SiteSpec spec);
  ~Site();

  // Takes one participant. Its completion is called exactly once, maybe before this returns.
  void Arrive(Arrival arrival);

  const SiteSpec& spec() const { return spec_; }
  std::vector<int32_t> GroupPartitions(int group) const;
  // (rank, device) pairs of this process that have come so far.
  std::vector<std::pair<int, int>> Arrived(int group);
  void Resolve(int group, std::shared_ptr<const Plan> plan);
  // By what key the operations of a group are known, and to which process this is, before there is a plan: where none
  // comes, the other processes are told.
  void Identify(int group, uint64_t key, Half half, int process);
  void Reject(int group, Status status, uint64_t generation);
  // Fails what waits and forgets plans and counts: from now on it is in that generation of the job.
  void Renew(uint64_t generation, const Status& status);
  // Fails what waits too long for participants or a plan, or all that waits if there is a reason to abort; false when
  // nothing waits any more.
  bool CheckDeadlines(Clock::time_point now, const std::string* abort_reason);
  void Number(uint64_t ordinal);
  // An operation of a group that has ended and may serve again.
  void TakeBack(int group, std::shared_ptr<Operation> op);
  // Adds what waits here for local ranks or a plan.
  void Describe(Clock::time_point now, std::vector<Activity>* activities);

 private:
  struct Instance {
    int64_t run_id;
    uint64_t sequence;
    bool numbered = false;
    Clock::time_point begun;
    std::vector<Arrival> arrivals;  // as they came
    Status failure;                 // not ok: ranks or the plan did not come; who comes now is failed with it
  };
  enum class PlanState { kNone, kAsked, kReady };
  struct Group {
    PlanState state = PlanState::kNone;
    std::shared_ptr<const Plan> plan;
    std::deque<Instance> waiting;
    uint64_t next_sequence = 0;
    std::map<int, int> devices;        // rank -> device; complete once there is a plan
    std::shared_ptr<Operation> spare;  // of the plan, and nobody else's: the next execution's
    struct Identity {
      uint64_t key;
      Half half;
      int process;
    };
    std::optional<Identity> identity;
  };
  // What a rank brought; nullptr if it has not come.
  static Arrival* Of(Instance& instance, int rank);
  bool Complete(const Group& group, const Instance& instance) const;
  // Numbers an execution of a message's half: several sites count those together.
  void CountMessage(const Group& group, Instance& instance);
  // Leaves the lock open.
  void Start(int group, Instance instance, bool on_this_thread, Clock::time_point now,
             std::unique_lock<std::mutex>& lock);
  void Expire(Group& group, Instance& instance);
  // Fails what another process says is over; false if none does.
  bool FailTold(Group& group, Instance& instance);
  void FailAll(Instance& instance, const Status& status);

  Engine* engine_;
  SiteSpec spec_;
  std::map<int32_t, std::pair<int, int>> place_;  // partition -> (group, rank)
  std::mutex mutex_;
  std::deque<Group> groups_;  // a deque: groups hold participants and do not move
  bool watched_ = false;
  uint64_t generation_;
};

// Counts anew: these sites, in the order in which they were made, are all that there are. A process that was restarted
// has made only those of its present programs.
void RenumberSites(const std::vector<std::shared_ptr<Site>>& sites);

}  // namespace jaxring
