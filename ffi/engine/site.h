// A call site: one custom call of one compiled program. It brings together the participants of each execution.
//
// A call may hold several collectives, of the same ranks: each has a plan of its own, and an execution begins all of
// them at once. Participants of one process meet by (run, site, group), first come first served for each rank, because
// a loop runs a site again within one run. Operations of different processes meet by the plan's key and a sequence
// number that counts the executions under that key, of however many sites: a program that one process compiled again
// goes on where the other one was.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/operation/operation.h"
#include "network/control_frames.h"
#include "plan/plan.h"

namespace jaxring {

class Engine;

struct SiteSpec {
  std::vector<std::string> specs;  // of each collective, JSON for the planner; opaque here
  std::vector<int32_t> groups;     // partition ids, group after group
  int group_size = 1;
  double timeout_s = 300;
  std::vector<uint64_t> ordinals;  // of each collective, among those with equal specs (site_names.h)
};

struct Arrival {
  struct Buffers {
    const void* in;
    void* out;
    uint64_t in_bytes, out_bytes;
    Pages pages = Pages::kPresent;  // of `out`
  };
  int partition = 0;
  int device = 0;
  int64_t run_id = 0;
  Participant participant;  // its buffers are the first collective's
  uint64_t in_bytes = 0, out_bytes = 0;
  std::unique_ptr<Buffers[]> further{};  // of the other collectives; null where there is none
  Buffers Of(size_t collective) const {
    if (collective != 0) return further[collective - 1];
    return {participant.in, participant.out, in_bytes, out_bytes, participant.pages};
  }
};

class Site : public std::enable_shared_from_this<Site> {
 public:
  Site(Engine* engine, SiteSpec spec);
  ~Site();

  // Takes one participant. Its completion is called exactly once, maybe before this returns.
  [[gnu::hot]] void Arrive(Arrival arrival);

  const SiteSpec& spec() const { return spec_; }
  // No other site of this process has or had it.
  uint64_t id() const { return id_; }
  std::vector<int32_t> GroupPartitions(int group) const;
  // (rank, device) pairs of this process that have come so far.
  std::vector<std::pair<int, int>> Arrived(int group);
  // What a group waits for: the plan of one of its collectives.
  void Resolve(int group, size_t collective, std::shared_ptr<const Plan> plan);
  // By what key the operations of a group's collective are known, and to which process this is, before there is a plan:
  // where none comes, the other processes are told.
  void Identify(int group, size_t collective, uint64_t key, Half half, int process, uint64_t epoch);
  void Reject(int group, size_t collective, Status status, uint64_t epoch);
  // Fails what waits and forgets plans and counts: from now on it is in that epoch of the job.
  void Renew(uint64_t epoch, const Status& status);
  // Fails what waits too long for participants or a plan, or all that waits if there is a reason to abort; false when
  // nothing waits any more.
  bool CheckDeadlines(Clock::time_point now, const std::string* abort_reason);
  // Fails executions that waited at a time for participants or a plan; false if there were none.
  bool Interrupt(const std::string& why, Clock::time_point at);
  // Operations of an execution of a group, which has begun: those that have ended and may serve again are kept.
  [[gnu::hot]] void TakeBack(int group, std::span<std::shared_ptr<Operation>> ops);
  // Adds what waits here for local ranks or a plan.
  void Describe(Clock::time_point now, std::vector<Activity>* activities);

 private:
  struct Instance {
    int64_t run_id;
    uint64_t sequence;  // of the group's executions; once it has a counter, of those that are counted there
    Clock::time_point begun;
    std::vector<Arrival> arrivals;  // as they came
    Status failure;                 // not ok: ranks or the plan did not come; who comes now is failed with it
  };
  // A collective of a group.
  struct Part {
    bool asked = false;  // for a plan, and not answered yet
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<Operation> spare;  // of the plan, and nobody else's: the next execution's
    struct Identity {
      uint64_t key;
      Half half;
      int process;
    };
    std::optional<Identity> identity;
  };
  struct Group {
    std::vector<Part> parts;
    bool ready = false;  // all of them have plans
    std::deque<Instance> waiting;
    // Counts executions under the first collective's key, once that is known, together with other sites; before,
    // `begun` counts those of the group.
    std::shared_ptr<std::atomic<uint64_t>> counter;
    uint64_t begun = 0;
    std::map<int, int> devices;  // rank -> device; complete once it is ready
    // How many ranks are this process's; once it is ready.
    size_t locals() const { return parts[0].plan->locals.size(); }
  };
  // What a rank brought; nullptr if it has not come.
  [[gnu::hot]] static Arrival* Of(Instance& instance, int rank);
  // Once the group is ready.
  bool Complete(const Group& group, const Instance& instance) const;
  // The number of an execution that begins now.
  [[gnu::hot]] static uint64_t NextSequence(Group& group);
  // Asks for the plans that a group lacks.
  void Ask(int group);
  // From now on a failure is told to the other processes; those that waited for another part's plan are told now.
  void Identified(Group& group, Part& part, const Part::Identity& identity);
  // Leaves the lock open.
  [[gnu::hot]] void Start(int group, Instance& instance, bool on_this_thread, Clock::time_point now,
                          std::unique_lock<std::mutex>& lock);
  // Whether what the ranks brought fits a plan; otherwise they are failed.
  [[gnu::hot]] bool Fits(const Plan& plan, size_t collective, Instance& instance);
  // A buffered send ends for its caller as soon as the data is copied: the peer's receive may depend on that end.
  // Leaves whom to tell, once it has begun, in `sent`. False if it has failed the ranks instead.
  bool Buffer(const Plan& plan, Instance& instance, std::shared_ptr<std::vector<char>>* copy,
              std::vector<Completion>* sent);
  // The operation of one of the call's collectives; nullptr if it has failed the ranks instead.
  [[gnu::hot]] std::shared_ptr<Operation> Prepare(Group& group, size_t collective, Instance& instance,
                                                  Clock::time_point now, std::vector<Completion>* sent);
  // The ranks end with the last of several operations.
  void Join(Instance& instance, std::span<std::shared_ptr<Operation>> ops);
  void Expire(Group& group, Instance& instance);
  // Tells the other processes of an execution that failed here before it began.
  void TellFailure(Group& group, Instance& instance);
  // A collective that may have no plan yet, for messages.
  std::string CallName(size_t collective) const;
  // What planning waits for, to be said behind the call's name; empty where it does not wait.
  std::string WaitsFor() const;
  // Fails what another process says is over; false if none does.
  bool FailTold(Group& group, Instance& instance);
  [[gnu::cold]] void FailAll(Instance& instance, const Status& status);

  Engine* engine_;
  const uint64_t id_;
  SiteSpec spec_;
  std::map<int32_t, std::pair<int, int>> place_;  // partition -> (group, rank)
  std::mutex mutex_;
  std::deque<Group> groups_;  // a deque: groups hold participants and do not move
  bool watched_ = false;
  uint64_t epoch_;
};

}  // namespace jaxring
