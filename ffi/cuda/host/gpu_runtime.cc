#include "cuda/host/gpu_runtime.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/mutex.h"
#include "base/thread_name.h"

namespace jaxring::cuda {
namespace {

// How often the status words are read: one read of host memory for each local rank of each plan.
constexpr auto kCheckInterval = std::chrono::milliseconds(10);
// The key under which processes report that they end all work on GPUs. Those of communicators and operations are
// hashes.
constexpr uint64_t kEndsAll = 0x6a78722d61626f72;
std::atomic<Runtime*> running{nullptr};

}  // namespace

Runtime* RunningRuntime() { return running.load(std::memory_order_acquire); }

Runtime& StartRuntime(Network& network, bool checksums, int process, std::function<void()> wake) {
  static Mutex mutex;
  MutexLock lock(mutex);
  if (RunningRuntime() == nullptr)
    running.store(new Runtime(ThisGpu(), network, checksums, process, std::move(wake)), std::memory_order_release);
  return *RunningRuntime();
}

Runtime::Runtime(Gpu& gpu, Network& network, bool checksums, int process, std::function<void()> wake)
    : gpu_(gpu),
      network_(network),
      process_(process),
      wake_(std::move(wake)),
      regions_(gpu, process),
      proxy_(gpu, network, checksums),
      side_streams_(gpu.streams, service_),
      monitor_([this] { MonitorLoop(); }) {}

Runtime::~Runtime() {
  stop_ = true;
  if (monitor_.joinable()) monitor_.join();
  proxy_.Stop();  // its thread reports damage to communicators
}

std::shared_ptr<Communicator> Runtime::GetCommunicator(const CommunicatorSpec& spec) {
  const auto find = [&]() -> std::shared_ptr<Communicator> {
    MutexLock lock(mutex_);
    const auto it = communicators_.find(spec.name);
    return it == communicators_.end() ? nullptr : it->second;
  };
  if (auto known = find()) return known;
  // Two threads may ask for the same one; the service's thread makes one after another.
  return service_.Do([&] {
    if (auto known = find()) return known;
    auto made = std::make_shared<Communicator>(gpu_, regions_, &proxy_, process_, spec);
    std::optional<std::string> ended;
    {
      MutexLock lock(mutex_);
      communicators_.emplace(spec.name, made);
      ended = ended_;
    }
    if (ended) made->health().Break(*ended);
    return made;
  });
}

void Runtime::Prepare(int device) {
  char* word = service_.Do([&] {
    gpu_.devices.Prepare(device);
    return gpu_.memory.AllocatePinned(kLineBytes);
  });
  MutexLock lock(mutex_);
  pinned_.push_back(word);
}

uint32_t Runtime::ReadBehind(void* stream, const void* word) {
  char* to = nullptr;
  {
    MutexLock lock(mutex_);
    if (!pinned_.empty()) {
      to = pinned_.back();
      pinned_.pop_back();
    }
  }
  // Several programs read on one device.
  if (to == nullptr) to = service_.Do([&] { return gpu_.memory.AllocatePinned(kLineBytes); });
  const auto give_back = [&] {
    MutexLock lock(mutex_);
    pinned_.push_back(to);
  };
  try {
    gpu_.streams.ReadBehind(stream, to, word, sizeof(uint32_t));
  } catch (...) {
    give_back();
    throw;
  }
  uint32_t value;
  std::memcpy(&value, to, sizeof value);
  give_back();
  return value;
}

void Runtime::Ask(Request request) {
  {
    MutexLock lock(news_mutex_);
    requests_.push_back(std::move(request));
  }
  wake_();
}

std::optional<Request> Runtime::NextRequest() {
  MutexLock lock(news_mutex_);
  if (requests_.empty()) return std::nullopt;
  Request request = std::move(requests_.front());
  requests_.pop_front();
  return request;
}

void Runtime::Watch(std::shared_ptr<LaunchPlan> plan) {
  MutexLock lock(mutex_);
  if (std::find(plans_.begin(), plans_.end(), plan) == plans_.end()) plans_.push_back(std::move(plan));
}

std::vector<std::string> Runtime::TakeFaults() {
  MutexLock lock(news_mutex_);
  return std::exchange(faults_, {});
}

void Runtime::Report(const std::string& text) {
  {
    MutexLock lock(news_mutex_);
    faults_.push_back(text);
  }
  wake_();
}

void Runtime::MonitorLoop() {
  NameThread("jaxring-faults");
  while (!stop_) {
    CheckPlans();
    std::this_thread::sleep_for(kCheckInterval);
  }
}

void Runtime::End(const std::string& reason) {
  std::map<std::string, std::shared_ptr<Communicator>> communicators;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = reason;
    communicators = communicators_;
  }
  for (auto& [name, communicator] : communicators) communicator->health().Break(reason);
}

std::optional<std::string> Runtime::Ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

void Runtime::CheckPlans() {
  if (const auto told = network_.failures().Find(kEndsAll); told && !Ended()) {
    Report(told->message);
    End(told->message);
  }
  std::vector<std::shared_ptr<LaunchPlan>> plans;
  std::map<std::string, std::shared_ptr<Communicator>> communicators;
  {
    MutexLock lock(mutex_);
    plans = plans_;
    communicators = communicators_;
  }
  std::string why;
  // A launch that fails because an earlier one has failed says less. The earlier one's fault was recorded before, so
  // those that follow no other are looked for first, once there is any.
  const bool any = std::any_of(plans.begin(), plans.end(), [](const auto& plan) { return !plan->Fault().empty(); });
  for (bool causes_only : {true, false}) {
    if (!any) break;
    for (auto& plan : plans) {
      if (plan->communicator().health().Broken(&why)) continue;
      const std::string fault = plan->Fault(causes_only);
      if (fault.empty()) continue;
      // Reported first: Break fails other calls, and the report must come before the process can end because of them.
      Report(fault);
      plan->Break(fault);
      TellPeers(plan->communicator(), fault);
    }
  }
  for (auto& [name, communicator] : communicators) {
    if (communicator->health().Broken(&why)) continue;
    if (const std::string damage = communicator->health().Damage(); !damage.empty()) {
      Report(damage);
      communicator->health().Break(damage);
      TellPeers(*communicator, damage);
      continue;
    }
    // A peer may have reported a failure, and its kernels wait for messages that this process's will not send.
    if (const auto told = network_.failures().Find(communicator->ranks().key())) {
      Report(told->message);
      communicator->health().Break(told->message);
      continue;
    }
    for (int peer : communicator->ranks().peers()) {
      std::string end;
      // A process that ends in good order has said so before, with its exit code.
      auto reason = [](const LinkEnd& ended) {
        return ended.reason + (ended.ending == Ending::kGoodbye ? ", so it ran fewer steps than this process" : "");
      };
      if (auto link = network_.links().Send(peer, 0); link && link->end.closed.load(std::memory_order_acquire)) {
        end = reason(link->end);
      } else if (auto back = network_.links().Recv(peer, 0); back && back->end.closed.load(std::memory_order_acquire)) {
        end = reason(back->end);
      } else if (network_.peers().Crashed(peer)) {
        end = "its control connection has ended";
      } else {
        continue;
      }
      const std::string text =
          "process " + std::to_string(peer) + ", with which this process runs collectives on GPUs, is gone: " + end;
      // A process that ended in good order has finished its part of every operation that it began; only later ones
      // fail.
      if (network_.peers().Crashed(peer)) Report(text);
      communicator->health().Break(text);
      try {
        communicator->MarkPeerDead(peer);
      } catch (const std::exception& error) {
        Report(std::string("the GPU does not answer any more: ") + error.what());
      }
      break;
    }
  }
}

void Runtime::TellPeers(const Communicator& communicator, const std::string& fault) {
  network_.BroadcastFailure(communicator.ranks().key(), jaxring::Status::Error(Code::kUnavailable, fault), process_);
}

void Runtime::Abort(const std::string& reason, bool tell) {
  stop_ = true;
  End(reason);
  if (tell) network_.BroadcastFailure(kEndsAll, jaxring::Status::Error(Code::kUnavailable, reason), process_);
  // Both threads read pinned memory, so they must stop before CUDA unmaps it.
  if (monitor_.joinable()) monitor_.join();
  proxy_.Stop();
}

std::map<std::string, uint64_t> Runtime::Counters() {
  const ExportedRegions::Counts exported = regions_.exports().counts();
  const ImportedRegions::Counts imported = regions_.imports().counts();
  MutexLock lock(mutex_);
  uint64_t staged = 0;
  for (auto& plan : plans_) staged += plan->staged_launches();
  return {{"plans", plans_.size()},
          {"communicators", communicators_.size()},
          {"staged_launches", staged},
          {"shared_by_handle", exported.by_handle},
          {"shared_by_descriptor", exported.by_descriptor},
          {"unshared", exported.unshared},
          {"failed_mappings", imported.failed_mappings},
          {"started", side_streams_.count()},
          {"in_flight", side_streams_.open()},
          {"carried_messages", proxy_.messages()},
          {"direct_messages", proxy_.direct_messages()},
          {"gpu_direct_messages", proxy_.gpu_direct_messages()},
          {"mapped_bytes", imported.mapped_bytes}};
}

}  // namespace jaxring::cuda
