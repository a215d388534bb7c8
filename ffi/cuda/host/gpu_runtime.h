// The CUDA engine's host half in one process: the state that all call sites share. Made once, and never destroyed in a
// Python process.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cuda/host/gpu_site.h"
#include "cuda/host/group/communicator.h"
#include "cuda/host/launcher.h"
#include "cuda/host/memory/regions.h"
#include "cuda/host/network/proxy.h"
#include "cuda/host/side_streams.h"

namespace jaxring::cuda {

class Runtime {
 public:
  using Log = std::function<void(const std::string&)>;
  // `network` has the links to other processes. With `checksums` every message carries one of its payload. `wake` has
  // Python look for requests and faults.
  Runtime(Gpu& gpu, Network& network, bool checksums, int process, std::function<void()> wake);
  ~Runtime();

  Gpu& gpu() { return gpu_; }
  Regions& regions() { return regions_; }
  Proxy& proxy() { return proxy_; }
  SideStreams& side_streams() { return side_streams_; }
  int process() const { return process_; }

  // The communicator named in `spec`, made at the first call.
  std::shared_ptr<Communicator> GetCommunicator(const CommunicatorSpec& spec);

  // Loads the kernels for a GPU of this process, before any of them runs.
  void Prepare(int device);
  // Waits for the stream's work and returns a word of device memory. The stream must not be under capture.
  uint32_t ReadBehind(void* stream, const void* word);

  void Ask(Request request);
  std::optional<Request> NextRequest();
  // Why nothing runs any more, once Abort was called, here or with `tell` in another process.
  std::optional<std::string> Ended() const;

  // Monitors the plan's status from now on. A fault, or the end of a process with a rank of the plan, breaks the
  // communicator, is logged, and fails every later call.
  void Watch(std::shared_ptr<LaunchPlan> plan);
  // Takes the descriptions of new faults, for Python's logger.
  std::vector<std::string> TakeFaults();

  // Fails everything, now and from now on, for the first reason that is given. With `tell` the other processes of the
  // job do so, too, also those that connect with this one later.
  void Abort(const std::string& reason, bool tell);

  std::map<std::string, uint64_t> Counters();

 private:
  void MonitorLoop();
  void CheckPlans();
  // Breaks all communicators, those that are still to be made as well. Only the first reason counts.
  void End(const std::string& reason);
  void Report(const std::string& text);
  // Reports the fault to the other processes, whose kernels would otherwise wait for messages of this one's.
  void TellPeers(const Communicator& communicator, const std::string& fault);

  Gpu& gpu_;
  Network& network_;
  const int process_;
  const std::function<void()> wake_;
  Service service_;
  Regions regions_;
  Proxy proxy_;
  SideStreams side_streams_;
  // No thread waits for CUDA under either mutex. The planning thread, which serves CPUs as well, takes only the second.
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Communicator>> communicators_ JAXRING_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<LaunchPlan>> plans_ JAXRING_GUARDED_BY(mutex_);
  std::vector<char*> pinned_ JAXRING_GUARDED_BY(mutex_);  // words for ReadBehind that are not in use
  std::optional<std::string> ended_ JAXRING_GUARDED_BY(mutex_);
  Mutex news_mutex_;
  std::deque<Request> requests_ JAXRING_GUARDED_BY(news_mutex_);
  std::vector<std::string> faults_ JAXRING_GUARDED_BY(news_mutex_);
  std::atomic<bool> stop_{false};
  std::thread monitor_;
};

// This process's runtime; nullptr before StartRuntime.
Runtime* RunningRuntime();
Runtime& StartRuntime(Network& network, bool checksums, int process, std::function<void()> wake);

}  // namespace jaxring::cuda
