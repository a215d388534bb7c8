#include "tests/support/job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>

#include "tests/support/tcp_links.h"
#include "tests/support/verbs_wire.h"
#include "transport/shm/shm_connector.h"

namespace jaxring::test {
namespace {

Simulation* simulation = nullptr;  // of the fake job, while there is one

}  // namespace

struct Ends::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Status> ends;
  size_t called = 0;
};

struct Ends::Token {
  Token(std::shared_ptr<State> s, size_t i) : state(std::move(s)), index(i) {}
  ~Token() {
    if (!called) Fail(__FILE__, __LINE__, "no completion is dropped without a call");
  }
  void Call(const Status& status) {
    if (called.exchange(true)) Fail(__FILE__, __LINE__, "no completion is called twice");
    std::lock_guard lock(state->mutex);
    state->ends[index] = status;
    ++state->called;
    state->changed.notify_all();
  }
  std::shared_ptr<State> state;
  size_t index;
  std::atomic<bool> called{false};
};

Ends::Ends(std::string what) : what_(std::move(what)), state_(std::make_shared<State>()) {}

Completion Ends::Expect() {
  auto token = std::make_shared<Token>(state_, [this] {
    std::lock_guard lock(state_->mutex);
    state_->ends.emplace_back();
    return state_->ends.size() - 1;
  }());
  return [token = std::move(token)](const Status& status) { token->Call(status); };
}

std::vector<Status> Ends::Wait() {
  if (simulation != nullptr) {
    simulation->Run([this] { return state_->called == state_->ends.size(); }, simulation->time().now() + 60'000'000);
  }
  std::unique_lock lock(state_->mutex);
  bool ended = state_->changed.wait_for(lock, std::chrono::seconds(simulation == nullptr ? 60 : 0),
                                        [this] { return state_->called == state_->ends.size(); });
  if (!ended) {
    std::cerr << state_->called << " of " << state_->ends.size() << " completions were called " << what_ << std::endl;
    Fail(__FILE__, __LINE__, "every operation ends");
  }
  return state_->ends;
}

void Ends::WaitOk() {
  for (const Status& status : Wait()) {
    if (!status.ok()) std::cerr << status.message << std::endl;
    CHECK(status.ok());
  }
}

Job::Job(int processes, Wire wire, const EngineOptions& options, int channels, bool ring)
    : processes_(processes), channels_(channels), wire_(wire), ring_(ring) {
  if (wire == Wire::kFake) {
    EngineOptions stepped = options;
    stepped.stepped = true;
    Simulation::Pairs neighbours;
    for (int p = 0; ring && p < processes; ++p) neighbours.insert(std::minmax(p, (p + 1) % processes));
    time_ = std::make_unique<VirtualTime>(1);
    simulation_ = std::make_unique<Simulation>(
        time_.get(), processes, stepped, channels,
        [this](int process, const PlanRequest& request) { Answer(process, request); }, std::move(neighbours));
    simulation = simulation_.get();
    return;
  }
  for (int p = 0; p < processes; ++p) {
    engines_.push_back(std::make_unique<ProcessEngine>(options));
  }
  Link();
  for (int p = 0; p < processes; ++p) planners_.emplace_back([this, p] { Plan(p); });
}

void Job::Link() {
  for (int from = 0; from < processes(); ++from) {
    for (int to = 0; to < processes(); ++to) {
      for (int c = 0; from != to && c < channels_; ++c)
        wire_ == Wire::kShared ? Share(from, to, c) : Connect(from, to, c);
      const bool neighbours = to == from + 1 || to == from + processes() - 1;
      if (from < to && (neighbours || !ring_)) Control(from, to);
    }
  }
}

void Job::Renew(uint64_t epoch) {
  if (simulation_) {
    for (const int64_t until = time_->now() + 60'000'000; !simulation_->Renew(epoch);) {
      CHECK(time_->now() < until);
      simulation_->Run([] { return false; }, time_->now() + 1000);
    }
    return;
  }
  for (auto& engine : engines_) CHECK(engine->Renew(epoch, 60));
  for (auto& [pair, fd] : sockets_) close(fd);
  for (auto& [pair, fd] : controls_) close(fd);
  sockets_.clear();
  controls_.clear();
  Link();
  for (auto& engine : engines_) engine->halting().Resume();
}

Job::~Job() {
  if (simulation_) simulation = nullptr;
  stop_ = true;
  for (auto& engine : engines_) engine->python().Close();
  for (auto& planner : planners_) planner.join();
  engines_.clear();
  for (auto& [pair, fd] : sockets_) close(fd);
  for (auto& [pair, fd] : controls_) close(fd);
}

void Job::Answer(const std::string& spec, Planner planner) {
  std::lock_guard lock(mutex_);
  answers_[spec] = std::move(planner);
}

void Job::Cut(int a, int b) {
  if (simulation_) return simulation_->Cut(a, b);
  for (auto& [pair, fd] : sockets_) {
    if (pair == std::pair(a, b) || pair == std::pair(b, a)) shutdown(fd, SHUT_RDWR);
  }
}

void Job::Share(int from, int to, int channel) {
  SystemNetwork &sender = network(from), &receiver = network(to);
  const LinkName sends{to, channel, true}, receives{from, channel, false};
  const std::string ours = sender.connectors().Offer("shm", sends, {});
  sender.connectors().Prepare(sends, receiver.connectors().Offer("shm", receives, {}));
  sender.AddLink(sends, Descriptor(), 0);
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer identifies memory by its address, so both sides must use one mapping.
  receiver.connectors().Forget(receives);
  const std::shared_ptr<SendLink> send = sender.links().Send(to, channel);
  auto doorbell = Doorbell::Open("/proc/self/fd/" + std::to_string(sender.doorbell().fd()));
  auto recv = std::shared_ptr<RecvLink>(new RecvLink(kShm, send->memory.View(), doorbell.get()),
                                        [send](RecvLink* link) { delete link; });
  if (send->shared_blocks) recv->Map(send->shared_blocks->View());
  recv->notifier = std::move(doorbell);
  receiver.links().AddRecv(from, channel, std::move(recv));
#else
  receiver.connectors().Prepare(receives, ours);
  receiver.AddLink(receives, Descriptor(), 0);
#endif
}

void Job::Connect(int from, int to, int channel) {
  if (!VerbsDevices().empty()) {
    sockets_.push_back({{from, to}, ConnectVerbs(*engines_[from], *engines_[to], from, to, channel)});
    return;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int bytes = 4096, yes = 1;  // small buffers, so that writes are split
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener, 1) == 0);
  CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const int sending = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(sending, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(sending, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  CHECK(connect(sending, reinterpret_cast<sockaddr*>(&address), size) == 0);
  const int receiving = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  CHECK(receiving >= 0);
  close(listener);
  sockets_.push_back({{from, to}, dup(sending)});
  LinkByTcp(network(to), from, channel, receiving, false);
  LinkByTcp(network(from), to, channel, sending, true);
}

void Job::CutControl(int a, int b) {
  if (simulation_) return simulation_->Cut(a, b);
  shutdown(controls_.at({std::min(a, b), std::max(a, b)}), SHUT_RDWR);
}

void Job::DamageControl(int from, int to) {
  CHECK(from < to);  // the end that is kept
  CHECK(send(controls_.at({from, to}), "\xff\xff\xff\xff", 4, MSG_NOSIGNAL) == 4);
}

void Job::Control(int a, int b) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  controls_[{a, b}] = dup(ends[0]);
  network(a).AddControl(b, std::make_unique<Stream>(ends[0]));
  network(b).AddControl(a, std::make_unique<Stream>(ends[1]));
}

void Job::Plan(int process) {
  while (!stop_) {
    PlanRequest request;
    if (engine(process).NextRequest(0.05, &request)) Answer(process, request);
  }
}

void Job::Answer(int process, const PlanRequest& request) {
  Planner planner;
  {
    std::lock_guard lock(mutex_);
    planner = answers_.at(request.spec());
  }
  planner(process, request);
}

std::shared_ptr<jaxring::Plan> MakePlan(const Schedule& schedule, const Settings& settings, int process, int channels) {
  auto plan = std::make_shared<jaxring::Plan>();
  plan->what = "test " + schedule.name;
  plan->key = settings.key;
  plan->half = schedule.half;
  plan->data.dtype = settings.dtype;
  plan->data.element_bytes = plan->data.partial_bytes = ElementBytes(settings.dtype);
  if (schedule.reduces()) {
    plan->data.kernels = FindKernels(settings.dtype, settings.op);
    CHECK(plan->data.kernels != nullptr);
    plan->data.partial_bytes = plan->data.kernels->accumulator_bytes;
    plan->data.divisor = settings.divisor;
  }
  plan->epilogue = settings.epilogue;
  plan->codes = settings.codes;
  plan->protocol = settings.protocol;
  plan->shape.tile_elements = settings.tile;
  plan->shape.piece_bytes = settings.piece_bytes;
  plan->channels = std::max(1, std::min(schedule.nlanes, channels));
  plan->shape.in_blocks = schedule.in_blocks;
  plan->shape.out_blocks = schedule.out_blocks;
  plan->shape.pieces = schedule.pieces;
  plan->shape.scratch_chunks = schedule.scratch_chunks;
  plan->shape.nlanes = schedule.nlanes;
  plan->shape.block_elements = settings.block;
  plan->timeout_s = settings.timeout_s;
  plan->group.process = process;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const int where = schedule.placement[rank];
    plan->group.ranks.push_back(
        {where, rank, "rank " + std::to_string(rank) + " (process " + std::to_string(where) + ")"});
    if (where != process) continue;
    plan->group.locals.push_back(schedule.tables[rank]);
  }
  plan->Seal();
  return plan;
}

void Call::MakeAgain(int process) {
  sites_[process] = Site::Make(&job_->engine(process), SiteSpec(sites_[process]->spec()));
}

Call::Call(Job* job, const Schedule& schedule, Settings settings, double site_timeout_s)
    : job_(job), schedule_(schedule), settings_(std::move(settings)) {
  if (settings_.key == 0) settings_.key = job->NextKey();
  const std::string spec = "call " + std::to_string(job->NextKey());
  SiteSpec site{{spec}, {}, schedule.ranks(), site_timeout_s, {0}};
  for (int rank = 0; rank < schedule.ranks(); ++rank) site.groups.push_back(rank);
  for (int p = 0; p < schedule.processes(); ++p) sites_.push_back(Site::Make(&job->engine(p), site));
  job->Answer(spec, [plans = schedule, s = settings_, job](int p, const PlanRequest& request) {
    auto plan = MakePlan(plans, s, p, job->channels());
    plan->epoch = request.epoch;
    CheckPlan(*plan, job->engine(p).network().links().slot_bytes());
    request.Resolve(std::move(plan));
  });
}

Arrival Call::ArrivalOf(int rank, int64_t run, const void* in, void* out, Completion done) const {
  Arrival arrival{rank,
                  rank,
                  run,
                  {},
                  schedule_.in_blocks * settings_.block * ElementBytes(settings_.dtype),
                  schedule_.out_blocks * settings_.block * settings_.result_bytes()};
  arrival.participant.in = in;
  arrival.participant.out = out;
  arrival.participant.done = std::move(done);
  return arrival;
}

void Call::Arrive(int rank, int64_t run, std::unique_ptr<char*[]> blocks, Completion done) {
  Arrival arrival = ArrivalOf(rank, run, blocks[0], blocks[schedule_.in_blocks], std::move(done));
  arrival.participant.blocks = std::move(blocks);
  job_->Arrive(schedule_.placement[rank], [&] { site(rank)->Arrive(std::move(arrival)); });
}

void Call::Arrive(int rank, int64_t run, const void* in, void* out, Completion done, std::unique_ptr<Extents> extents) {
  Arrival arrival = ArrivalOf(rank, run, in, out, std::move(done));
  arrival.participant.extents = std::move(extents);
  job_->Arrive(schedule_.placement[rank], [&] { site(rank)->Arrive(std::move(arrival)); });
}

void Call::Arrive(int rank, int64_t run, const void* in, void* out, std::unique_ptr<EpilogueBuffers> epilogue,
                  Completion done) {
  Arrival arrival = ArrivalOf(rank, run, in, out, std::move(done));
  arrival.participant.epilogue = std::move(epilogue);
  job_->Arrive(schedule_.placement[rank], [&] { site(rank)->Arrive(std::move(arrival)); });
}

std::string Call::Describe() const {
  return schedule_.name + ", block " + std::to_string(settings_.block) + ", protocol " +
         std::to_string(static_cast<int>(settings_.protocol)) + ", dtype " +
         std::to_string(static_cast<int>(settings_.dtype));
}

}  // namespace jaxring::test
