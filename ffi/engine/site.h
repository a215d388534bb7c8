// A call site: one custom call of one compiled program. It matches the participants of each execution.
//
// A fused call holds several collectives of the same ranks. Each has its own plan, and an execution begins all of them
// at once. Participants of one process are matched by (run, site, group). A loop runs a site several times within one
// run, so each rank's arrivals are matched in their order. Operations of different processes are matched by the plan's
// key and a sequence number, which counts the executions of all sites that have this key. So if one process compiles a
// program again, its count continues and still agrees with the others'.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/operation/operation.h"
#include "network/peers/control_frames.h"
#include "plan/plan.h"

namespace jaxring {

class Engine;

struct SiteSpec {
  std::vector<std::string> specs;  // of each collective, JSON for the planner; opaque here
  std::vector<int32_t> groups;     // partition ids, group after group
  int group_size = 1;
  double timeout_s = 300;
  std::vector<uint64_t> ordinals;    // of each collective, among those with equal specs (site_names.h)
  std::vector<std::string> shown{};  // of each collective, its place in the program for people; empty: as in its spec
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
  struct Token {};  // only Make has it

 public:
  // The engine has it in its list, by which renewals and interruptions reach it.
  static std::shared_ptr<Site> Make(Engine* engine, SiteSpec spec);
  Site(Token, Engine* engine, SiteSpec spec);
  ~Site();

  // Takes one participant. Its completion is called exactly once, maybe before this returns.
  [[gnu::hot]] void Arrive(Arrival arrival);

  const SiteSpec& spec() const { return spec_; }
  // Unique among all sites that this process ever had.
  uint64_t id() const { return id_; }
  std::vector<int32_t> GroupPartitions(int group) const;
  // The device of each rank of this process that has arrived so far.
  std::map<int, int> Arrived(int group);
  // Sets the plan of one of a group's collectives, and starts the executions that waited for it.
  void Resolve(int group, size_t collective, std::shared_ptr<const Plan> plan);
  // Sets the key of a collective's operations, and this process's number, before there is a plan. If planning fails,
  // the other processes are told of it under this key.
  void Identify(int group, size_t collective, uint64_t key, Half half, int process, uint64_t epoch);
  void Reject(int group, size_t collective, const Status& status, uint64_t epoch);
  // Moves the site to another epoch of the job: fails waiting executions, and drops plans and counts.
  void Renew(uint64_t epoch, const Status& status);
  // Fails executions that have waited too long for participants or a plan; with a reason to abort, all that wait. False
  // when none waits any more.
  bool CheckDeadlines(Clock::time_point now, const std::string* abort_reason);
  // Fails executions that waited at time `at` for participants or a plan; false if there were none.
  bool Interrupt(const std::string& why, Clock::time_point at);
  // Takes the operations of a launched execution, and keeps those that have ended and can be reused.
  [[gnu::hot]] void TakeBack(int group, std::span<std::shared_ptr<Operation>> ops);
  // Appends the executions that wait here for local ranks or a plan.
  void Describe(Clock::time_point now, std::vector<Activity>* activities);

 private:
  struct Execution {
    int64_t run_id;
    uint64_t sequence;  // by `Group::begun`; by `Group::counter` once there is one
    Clock::time_point begun;
    std::vector<Arrival> arrivals;  // in the order of arrival
    Status failure;                 // not ok: ranks or the plan did not arrive; later ranks fail with it
  };
  // A collective of a group.
  struct Collective {
    bool asked = false;  // a request for its plan is pending
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<Operation> spare;  // an ended operation of the plan, for the next execution; the only reference
    struct Identity {
      uint64_t key;
      Half half;
      int process;
    };
    std::optional<Identity> identity;
  };
  struct Group {
    std::vector<Collective> collectives;
    bool ready = false;  // all of them have plans
    std::deque<Execution> waiting;
    // Counts the executions under the first collective's key, of all sites together. Null until the key is known; until
    // then `begun` counts those of the group.
    std::shared_ptr<std::atomic<uint64_t>> counter;
    uint64_t begun = 0;
    std::map<int, int> devices;  // rank -> device; complete once the group is ready
    // The number of ranks in this process; only once the group is ready.
    size_t locals() const { return collectives[0].plan->group.locals.size(); }
  };
  // A rank's arrival; nullptr if it has not arrived.
  [[gnu::hot]] static Arrival* Of(Execution& execution, int rank);
  // Whether all local ranks have arrived. Only once the group is ready.
  bool Complete(const Group& group, const Execution& execution) const;
  // The sequence number of an execution that begins now.
  [[gnu::hot]] static uint64_t NextSequence(Group& group);
  // Requests the plans that a group lacks.
  void Ask(int group) JAXRING_REQUIRES(mutex_);
  // Sets a collective's identity, under which failures are broadcast from now on. Earlier failures are broadcast now.
  void Identified(Group& group, Collective& state, const Collective::Identity& identity) JAXRING_REQUIRES(mutex_);
  // What is to be done for an execution once the lock is free.
  struct Started {
    // Most calls hold one operation, for which no vector is allocated.
    std::shared_ptr<Operation> one;
    std::vector<std::shared_ptr<Operation>> several;
    std::vector<Completion> sent;  // of buffered sends
    std::span<std::shared_ptr<Operation>> ops() { return several.empty() ? std::span(&one, 1) : std::span(several); }
  };
  // Makes the operations of an execution, which Launch then launches. False if it has failed the ranks instead.
  [[gnu::hot]] bool Start(int group, Execution& execution, Clock::time_point now, Started* started)
      JAXRING_REQUIRES(mutex_);
  [[gnu::hot]] void Launch(Started& started, bool on_this_thread) JAXRING_EXCLUDES(mutex_);
  // Whether the ranks' buffers fit a plan; otherwise fails the ranks.
  [[gnu::hot]] bool Fits(const Plan& plan, size_t collective, Execution& execution) JAXRING_REQUIRES(mutex_);
  // Whether a rank has the further buffers of the plan's epilogue or codes, and no others.
  [[gnu::hot]] static bool FurtherFit(const Plan& plan, const Participant& participant);
  // Copies the data of a buffered send. Its caller's call ends once the send has begun, since the peer's receive may
  // depend on that; the completions to call then are appended to `sent`. False if it has failed the ranks instead.
  bool Buffer(const Plan& plan, Execution& execution, std::shared_ptr<std::vector<char>>* copy,
              std::vector<Completion>* sent) JAXRING_REQUIRES(mutex_);
  // The operation of one of the call's collectives; nullptr if it has failed the ranks instead.
  [[gnu::hot]] std::shared_ptr<Operation> Prepare(Group& group, size_t collective, Execution& execution,
                                                  Clock::time_point now, std::vector<Completion>* sent)
      JAXRING_REQUIRES(mutex_);
  // Makes the operations of a fused call complete the ranks together, after the last of them.
  void Fuse(Execution& execution, std::span<std::shared_ptr<Operation>> ops);
  void Expire(Group& group, Execution& execution) JAXRING_REQUIRES(mutex_);
  // Broadcasts the failure of an execution that failed here before it began.
  void TellFailure(Group& group, Execution& execution) JAXRING_REQUIRES(mutex_);
  // The name of a collective that may have no plan yet, for messages.
  std::string CallName(size_t collective) const;
  // What planning waits for, to append to the call's name; empty if it does not wait.
  std::string WaitsFor() const;
  // Fails an execution whose failure another process has reported; false if none has.
  bool FailIfReported(Group& group, Execution& execution) JAXRING_REQUIRES(mutex_);
  [[gnu::cold]] void FailAll(Execution& execution, const Status& status) JAXRING_REQUIRES(mutex_);

  Engine* engine_;
  const uint64_t id_;
  SiteSpec spec_;
  std::map<int32_t, std::pair<int, int>> place_;  // partition -> (group, rank)
  Mutex mutex_;
  // A deque, because groups hold participants and cannot be moved.
  std::deque<Group> groups_ JAXRING_GUARDED_BY(mutex_);
  bool watched_ JAXRING_GUARDED_BY(mutex_) = false;
  uint64_t epoch_ JAXRING_GUARDED_BY(mutex_) = 0;
};

}  // namespace jaxring
