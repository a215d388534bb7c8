// The CUDA engine's host half in one process: what all call sites share. Made once, never destroyed in a Python
// process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/host/communicator.h"
#include "cuda/host/gpu_site.h"
#include "cuda/host/launcher.h"
#include "cuda/host/memory/regions.h"
#include "cuda/host/network/proxy.h"
#include "cuda/host/side_streams.h"

namespace jaxring::cuda {

class Runtime {
 public:
  using Log = std::function<void(const std::string&)>;
  // `engine` holds the links to other processes; its own operations are not used.
  Runtime(Gpu& gpu, Engine& engine, int process);
  ~Runtime();

  Gpu& gpu() { return gpu_; }
  Engine& engine() { return engine_; }
  Regions& regions() { return regions_; }
  Proxy& proxy() { return proxy_; }
  SideStreams& side_streams() { return side_streams_; }
  int process() const { return process_; }

  // The communicator of that name, made from `spec` at the first call.
  std::shared_ptr<Communicator> GetCommunicator(const CommunicatorSpec& spec);

  void Ask(Request request);
  bool NextRequest(double timeout_s, Request* request);
  bool stopping() const { return stop_; }

  // Has the plan's status looked at from now on: a fault, or the end of a process that it spans, breaks its
  // communicator, is logged, and fails every later call.
  void Watch(std::shared_ptr<LaunchPlan> plan);
  // Sentences of faults that nobody has taken yet, for Python's logger. Waits timeout_s at most for one.
  std::vector<std::string> TakeFaults(double timeout_s);

  // Fails everything, now and from now on.
  void Abort(const std::string& reason);

  std::map<std::string, uint64_t> Counters();

 private:
  void Look();
  void LookOnce();
  void Report(const std::string& text);
  // The other processes, whose kernels would wait for what this one's do not send any more.
  void Tell(const Communicator& communicator, const std::string& fault);

  Gpu& gpu_;
  Engine& engine_;
  const int process_;
  Service service_;
  Regions regions_;
  Proxy proxy_;
  SideStreams side_streams_;
  std::mutex mutex_;
  std::condition_variable requested_, faulted_;
  std::deque<Request> requests_;
  std::map<std::string, std::shared_ptr<Communicator>> communicators_;
  std::vector<std::shared_ptr<LaunchPlan>> plans_;
  std::vector<std::string> faults_;
  std::atomic<bool> stop_{false};
  std::thread looker_;
};

// The one of this process; nullptr before StartRuntime.
Runtime* RunningRuntime();
Runtime& StartRuntime(Engine& engine, int process);

}  // namespace jaxring::cuda
