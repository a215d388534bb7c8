#include "engine/engine.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "engine/float_mode.h"
#include "engine/site.h"

namespace jaxring {
namespace {

constexpr auto kCrashGrace = std::chrono::milliseconds(100);
constexpr const char* kNoWord = " without a word";
constexpr int kLaneBudget = 64;
constexpr size_t kStashBytes = size_t{1} << 30;
// With operations in flight a sleeper looks again now and then, whatever the bell does.
constexpr int64_t kSleepUs = 100000, kIdleUs = 10000000;
// Small: the whole operation costs less than handing it to another thread (18 us across two cores), so the thread that
// launches it plays it to its end. For ranks of this process, all bytes that are read:
constexpr uint64_t kSmallMemoryBytes = 1 << 20;
// between processes, one rank's:
constexpr uint64_t kSmallBytes = 64 << 10;
// Looks before the first sched_yield (0.3 us and more): what a running peer sends arrives within these.
constexpr int kLooks = 32;

// The operation that this thread is launching: its own participant may be completed without another thread.
thread_local const Operation* launching = nullptr;
// Where this thread's launches go while a LaunchTogether lives.
thread_local std::vector<std::shared_ptr<Operation>>* kept_back = nullptr;

class PeerWatch final : public Poller::Handler {
 public:
  PeerWatch(Engine* engine, int process, int fd) : engine_(engine), process_(process), fd_(fd) {}
  ~PeerWatch() override { close(fd_); }
  void OnEvents(uint32_t) override {
    char byte;
    ssize_t n = recv(fd_, &byte, 1, MSG_DONTWAIT);
    if (n > 0) goodbye_ = true;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    engine_->poller().Remove(fd_);
    engine_->PeerGone(process_, "its process ended", goodbye_);
  }
  void SayGoodbye() {
    const char byte = 'b';
    [[maybe_unused]] ssize_t n = send(fd_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

 private:
  Engine* engine_;
  int process_, fd_;
  bool goodbye_ = false;
};

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(options),
      bell_(Bell::Create()),
      idle_(Bell::Create()),
      links_(options.slot_bytes, bell_.get()),
      interpreter_(&links_, &stash_),
      verbs_(options.slot_bytes, bell_.get()) {
  poller_ = std::make_unique<Poller>([this] { Tick(); });
  for (int i = 0; i < options_.threads; ++i) workers_.emplace_back([this] { Work(); });
}

Engine::~Engine() {
  stop_ = true;
  WakeRequests();
  bell_->NotifyAll();
  idle_->NotifyAll();
  for (auto& worker : workers_) worker.join();
  poller_.reset();
}

std::vector<std::shared_ptr<Operation>> Engine::Active(uint64_t* version) {
  std::lock_guard lock(mutex_);
  *version = version_.load(std::memory_order_relaxed);
  return active_;
}

void Engine::Launch(std::shared_ptr<Operation> op, bool help) {
  if (kept_back != nullptr) {
    kept_back->push_back(std::move(op));
    return;
  }
  launching = help ? op.get() : nullptr;
  Begin({&op, 1}, help);
  launching = nullptr;
}

LaunchTogether::LaunchTogether(Engine* engine) : engine_(engine) { kept_back = &operations_; }

LaunchTogether::~LaunchTogether() {
  kept_back = nullptr;
  engine_->Begin(operations_, true);
}

void Engine::Begin(std::span<Started> ops, bool help) {
  counters_.operations += ops.size();
  for (Started& op : ops) {
    if (op->lanes().empty()) Finish(op);
  }
  // Long ones first: the workers have them while this thread sees to those that wait for peers.
  auto is_long = [](const Started& op) {
    return op->plan().memory_only() && op->plan().in_bytes() * op->plan().ranks.size() > kSmallMemoryBytes;
  };
  const size_t count = std::partition(ops.begin(), ops.end(), is_long) - ops.begin();
  const auto work = ops.first(count), small = ops.subspan(count);
  HandOver(work);
  if (help && PlayHere(small)) {
    counters_.inline_operations += small.size();
  } else {
    HandOver(small);
  }
  if (!help) return;
  // All of a memory operation's data is here, so helping is work and no wait.
  for (Started& op : ops) {
    while (op->plan().memory_only() && Play(op)) {
    }
  }
}

void Engine::HandOver(std::span<Started> ops) {
  size_t lanes = 0;
  {
    std::lock_guard lock(mutex_);
    for (Started& op : ops) {
      if (op->finished()) continue;
      lanes += op->lanes().size();
      active_.push_back(op);
      active_count_.fetch_add(1, std::memory_order_release);
    }
    if (lanes == 0) return;
    version_.fetch_add(1, std::memory_order_release);
  }
  WakeWorkers(static_cast<int>(std::min(lanes, workers_.size())));
}

bool Engine::PlayHere(std::span<Started> ops) {
  uint64_t bytes = 0;
  // With other ranks of this process in flight, their handlers may need this thread.
  bool patient = counters_.in_flight.load(std::memory_order_relaxed) <= 1;
  for (Started& op : ops) {
    patient &= op->plan().locals.size() == 1;
    bytes += std::max(op->plan().in_bytes(), op->plan().out_bytes());
  }
  patient &= bytes <= kSmallBytes;
  Clock::time_point until{};
  for (int idle = 0;;) {
    bool moved = false, finished = true;
    for (Started& op : ops) {
      if (!op->finished()) moved |= Play(op);
      finished &= op->finished();
    }
    if (finished) return true;
    if (moved) {
      idle = 0;
    } else if (++idle < kLooks) {
      continue;
    }
    const auto now = Clock::now();
    if (until == Clock::time_point{}) {
      until = now + std::chrono::microseconds(patient ? options_.patience_us : options_.spin_us);
    } else if (now >= until) {
      return false;
    }
    if (!moved) sched_yield();
  }
}

void Engine::WakeWorkers(int count) {
  if (!idle_->Wake(count) || count > 1) bell_->Wake(count);
}

bool Engine::Play(const std::shared_ptr<Operation>& op) {
  bool moved = false;
  IeeeFloatMode mode;
  for (auto& lane : op->lanes()) {
    if (lane->busy.load(std::memory_order_relaxed) || lane->busy.exchange(true, std::memory_order_acquire)) continue;
    if (lane->done) {
      lane->busy.store(false, std::memory_order_release);
      continue;
    }
    Progress progress = interpreter_.Advance(*op, *lane, kLaneBudget);
    lane->busy.store(false, std::memory_order_release);
    if (progress != Progress::kBlocked) moved = true;
    if (progress == Progress::kDone && op->LaneDone()) Finish(op);
  }
  return moved;
}

void Engine::Finish(const std::shared_ptr<Operation>& op) {
  {
    std::lock_guard lock(mutex_);
    auto it = std::find(active_.begin(), active_.end(), op);
    if (it != active_.end()) {
      active_.erase(it);
      version_.fetch_add(1, std::memory_order_release);
      active_count_.fetch_sub(1, std::memory_order_release);
    }
  }
  Status status = op->failed() ? op->status() : Status{};
  recorder_.End(op->record, op->failed());
  if (op->failed()) {
    counters_.failures++;
    stash_.Discard(op->key());
    if (op->owned_input) {
      std::lock_guard lock(mutex_);
      detached_failures_[op->plan().key] = status;
    }
  }
  const bool here = launching == op.get();
  std::vector<CompletionPool::Work> elsewhere;
  Completion own;
  for (Participant& participant : op->participants()) {
    if (!participant.done) continue;
    Completion done = std::move(participant.done);
    participant.done = nullptr;
    if (participant.done_is_quick) {
      done(status);
    } else if (here && participant.on_launching_thread) {
      own = std::move(done);
    } else {
      elsewhere.push_back([done = std::move(done), status] { done(status); });
    }
  }
  completions_.PostAll(&elsewhere);
  if (own) own(status);
}

void Engine::Work() {
  std::vector<std::shared_ptr<Operation>> ops;
  uint64_t seen_version = ~uint64_t{0};
  auto last_progress = Clock::now();
  while (!stop_) {
    const uint32_t rung = bell_->Value(), called = idle_->Value();
    if (version_.load(std::memory_order_acquire) != seen_version) ops = Active(&seen_version);
    bool moved = false;
    for (auto& op : ops) {
      while (Play(op)) moved = true;
    }
    if (moved) {
      last_progress = Clock::now();
      continue;
    }
    if (!ops.empty()) Spill();
    if (!ops.empty() && Clock::now() - last_progress < std::chrono::microseconds(options_.spin_us)) {
      sched_yield();
      continue;
    }
    // Finished operations must not keep buffers alive while we sleep.
    if (active_count_.load(std::memory_order_acquire) == 0) {
      ops.clear();
      seen_version = ~uint64_t{0};
    }
    counters_.sleeps++;
    ops.empty() ? idle_->Wait(called, kIdleUs) : bell_->Wait(rung, kSleepUs);
    last_progress = Clock::now();
  }
}

void Engine::Spill() {
  // Past the budget a full ring holds its sender back instead; what then cannot move meets its deadline.
  if (stash_.bytes() > kStashBytes) return;
  for (auto& link : links_.AllRecv()) {
    for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      link->ring(protocol).SpillIfFull([this](const MessageId& id, const char* data, Message message) {
        counters_.spills++;
        stash_.Put(id, {message.check, std::vector<char>(data, data + message.bytes)});
      });
    }
  }
}

void Engine::Tick() {
  auto now = Clock::now();
  uint64_t version;
  bool late = false;
  const bool aborted = aborted_.load(std::memory_order_acquire);
  for (auto& op : Active(&version)) {
    if (aborted) {
      op->Fail(Status::Error(Code::kAborted, op->plan().what + ": " + abort_reason_));
      late = true;
    }
    FailCrashed(*op, now);
    late |= op->failed();
    if (now < op->deadline() || op->failed()) continue;
    std::string waits = op->DescribeWaits();
    op->Fail(Status::Error(Code::kDeadlineExceeded,
                           op->plan().what + ": not finished " +
                               std::to_string(static_cast<int>(op->plan().timeout_s)) +
                               " s after it began: " + (waits.empty() ? "no lane reports what it waits for" : waits) +
                               ". Raise timeout= or JAXRING_TIMEOUT if the peer is only slow."));
    late = true;
  }
  if (late) bell_->NotifyAll();
  verbs_.CheckPorts();
  std::vector<std::weak_ptr<Site>> watched;
  {
    std::lock_guard lock(mutex_);
    watched.swap(watched_);
  }
  for (auto& weak : watched) {
    if (auto site = weak.lock(); site && site->CheckDeadlines(now, aborted ? &abort_reason_ : nullptr)) Watch(weak);
  }
}

void Engine::Watch(std::weak_ptr<Site> site) {
  std::lock_guard lock(mutex_);
  watched_.push_back(std::move(site));
}

uint64_t Engine::NextSequence(uint64_t key, bool recv) {
  std::lock_guard lock(mutex_);
  return sequences_[{key, recv}]++;
}

void Engine::Abort(const std::string& reason, double timeout_s, bool goodbye) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_) return;
    abort_reason_ = reason;
    aborted_.store(true, std::memory_order_release);
  }
  const bool idle = active_count_.load(std::memory_order_acquire) == 0;
  poller_->Kick();
  auto until = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (active_count_.load(std::memory_order_acquire) != 0 && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Who gives operations up leaves its peers without their part: that is no good order.
  if (!idle || !goodbye) return;
  std::vector<std::function<void()>> goodbyes;
  {
    std::lock_guard lock(mutex_);
    goodbyes = goodbyes_;
  }
  for (auto& say : goodbyes) say();
}

Status Engine::TakeDetachedFailure(uint64_t key) {
  std::lock_guard lock(mutex_);
  auto node = detached_failures_.extract(key);
  return node ? std::move(node.mapped()) : Status{};
}

void Engine::Ask(std::shared_ptr<Site> site, int group) {
  {
    std::lock_guard lock(request_mutex_);
    requests_.push_back({next_request_++, std::move(site), group});
  }
  request_ready_.notify_one();
}

bool Engine::NextRequest(double timeout_s, PlanRequest* request) {
  std::unique_lock lock(request_mutex_);
  request_ready_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                          [this] { return stop_ || !requests_.empty(); });
  if (requests_.empty()) return false;
  *request = std::move(requests_.front());
  requests_.pop_front();
  return true;
}

void Engine::WakeRequests() { request_ready_.notify_all(); }

void Engine::PeerGone(int process, const std::string& reason, bool goodbye) {
  if (!goodbye) NoteCrash(process, reason + kNoWord);
  links_.ClosePeer(process, reason);
  bell_->NotifyAll();
}

void Engine::NoteCrash(int process, const std::string& reason) {
  std::lock_guard lock(mutex_);
  crashes_.try_emplace(process, Crash{reason, Clock::now()});
}

bool Engine::Crashed(int process) {
  std::lock_guard lock(mutex_);
  return crashes_.count(process) != 0;
}

void Engine::FailCrashed(Operation& op, Clock::time_point now) {
  std::string names, reason;
  {
    std::lock_guard lock(mutex_);
    for (const RankPlace& rank : op.plan().ranks) {
      auto it = crashes_.find(rank.process);
      // What the process sent before it died may still be enough: a moment for that.
      if (it == crashes_.end() || now - it->second.seen < kCrashGrace) continue;
      names += (names.empty() ? "" : ", ") + rank.name;
      reason = it->second.reason;
    }
  }
  if (names.empty()) return;
  op.Fail(Status::Error(Code::kUnavailable, op.plan().what + ": lost " + names + ": " + reason +
                                                ". Look at that process's log for the first error; the job has to be "
                                                "restarted."));
}

void Engine::WatchPeer(int process, int fd) {
  auto watch = std::make_shared<PeerWatch>(this, process, fd);
  {
    std::lock_guard lock(mutex_);
    goodbyes_.push_back([weak = std::weak_ptr<PeerWatch>(watch)] {
      if (auto live = weak.lock()) live->SayGoodbye();
    });
  }
  poller_->Add(fd, EPOLLIN | EPOLLRDHUP, std::move(watch));
}

void Engine::AddTcpRecv(int process, int channel, int fd) {
  // Only this connection ended: others of the same peer may still hold what it sent before.
  auto ended = [this, process](const std::string& why, bool goodbye) {
    if (!goodbye) NoteCrash(process, why + kNoWord);
  };
  auto link = MakeTcpRecvLink(fd, poller_.get(), links_.slot_bytes(), bell_.get(), ended);
  {
    std::lock_guard lock(mutex_);
    goodbyes_.push_back([link] { SayTcpGoodbye(*link); });
  }
  links_.AddRecv(process, channel, std::move(link));
}

void Engine::AddTcpSend(int process, int channel, int fd) {
  // Only this connection ended: others of the same peer may still hold what it sent before.
  auto ended = [this, process](const std::string& why, bool goodbye) {
    if (!goodbye) NoteCrash(process, why + kNoWord);
  };
  auto link = MakeTcpSendLink(fd, poller_.get(), links_.slot_bytes(), bell_.get(), ended);
  {
    std::lock_guard lock(mutex_);
    goodbyes_.push_back([link] { SayTcpGoodbye(*link); });
  }
  links_.AddSend(process, channel, std::move(link));
}

std::string Engine::AddVerbs(int process, int channel, bool sending, int fd, double timeout_s) {
  auto ended = [this, process](const std::string& why, bool goodbye) {
    if (!goodbye) NoteCrash(process, why);
  };
  VerbsJoin::Joined joined = verbs_.Finish(poller_.get(), process, channel, sending, fd, timeout_s, ended);
  {
    std::lock_guard lock(mutex_);
    goodbyes_.push_back(std::move(joined.say_goodbye));
  }
  if (sending) {
    links_.AddSend(process, channel, std::move(joined.send));
  } else {
    links_.AddRecv(process, channel, std::move(joined.recv));
  }
  return joined.description;
}

}  // namespace jaxring
