#include "cuda/host/standalone.h"

#include <algorithm>
#include <chrono>

namespace jaxring::cuda {
namespace {

double Microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

// Measures the two times of a result by repeated calls of `launch`, for all ranks, and `await`.
template <class Launch, class Await>
void Clock(int launches, Launch launch, Await await, StandaloneResult* result) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < launches; ++i) launch();
  await();
  result->microseconds = Microseconds(std::chrono::steady_clock::now() - begin) / launches;
  std::vector<double> waited;
  for (int i = 0; i < launches; ++i) {
    const auto start = std::chrono::steady_clock::now();
    launch();
    await();
    waited.push_back(Microseconds(std::chrono::steady_clock::now() - start));
  }
  std::nth_element(waited.begin(), waited.begin() + launches / 2, waited.end());
  result->waited = waited[launches / 2];
}

// Device memory and streams of one rank, freed by the destructor.
struct Rank {
  Rank(Gpu& g, int d, uint64_t in_bytes, uint64_t out_bytes) : gpu(g), device(d) {
    in = gpu.Allocate(device, in_bytes + 1);
    out = gpu.Allocate(device, out_bytes + 1);
    stream = gpu.NewStream(device);
  }
  ~Rank() {
    try {
      gpu.Free(device, in);
      gpu.Free(device, out);
      gpu.CloseStream(device, stream);
    } catch (const GpuError&) {  // the context is lost, which frees its memory
    }
  }
  Rank(const Rank&) = delete;
  Gpu& gpu;
  int device;
  char *in, *out;
  void* stream;
};

}  // namespace

StandaloneResult RunStandalone(LaunchPlan& plan, const std::vector<std::string_view>& inputs, int launches) {
  Communicator& group = plan.communicator();
  Gpu& gpu = group.gpu();
  const auto& infos = group.spec().ranks;
  if (inputs.size() != infos.size()) {
    throw std::invalid_argument("a standalone run of " + std::to_string(infos.size()) + " ranks was given " +
                                std::to_string(inputs.size()) + " inputs");
  }
  std::vector<std::unique_ptr<Rank>> ranks;
  for (size_t r = 0; r < infos.size(); ++r) {
    if (!group.local(static_cast<int>(r))) {
      throw std::invalid_argument("a standalone run needs all ranks in this process, and rank " + std::to_string(r) +
                                  " is in another");
    }
    if (inputs[r].size() != plan.in_bytes()) {
      throw std::invalid_argument("the input of rank " + std::to_string(r) + " has " +
                                  std::to_string(inputs[r].size()) + " bytes, not " + std::to_string(plan.in_bytes()));
    }
    ranks.push_back(std::make_unique<Rank>(gpu, infos[r].device, plan.in_bytes(), plan.out_bytes()));
    gpu.Copy(infos[r].device, ranks[r]->in, inputs[r].data(), inputs[r].size());
  }
  const auto launch = [&] {
    for (size_t r = 0; r < ranks.size(); ++r) {
      const jaxring::Status status = plan.Launch(static_cast<int>(r), ranks[r]->in, ranks[r]->out, plan.in_bytes(),
                                                 plan.out_bytes(), ranks[r]->stream);
      if (!status.ok()) throw std::runtime_error(status.message);
    }
  };
  const auto await = [&] {
    for (auto& rank : ranks) gpu.Synchronize(rank->device, rank->stream);
    if (std::string fault = plan.Fault(); !fault.empty()) throw std::runtime_error(fault);
  };
  launch();
  await();
  StandaloneResult result;
  for (auto& rank : ranks) {
    std::string output(plan.out_bytes(), 0);
    gpu.Copy(rank->device, output.data(), rank->out, output.size());
    result.outputs.push_back(std::move(output));
  }
  if (launches > 0) Clock(launches, launch, await, &result);
  return result;
}

double TimeCopy(Gpu& gpu, int device, uint64_t bytes, int copies) {
  Rank rank(gpu, device, bytes, bytes);
  gpu.CopyAsync(rank.out, rank.in, bytes, rank.stream);
  gpu.Synchronize(device, rank.stream);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < copies; ++i) gpu.CopyAsync(rank.out, rank.in, bytes, rank.stream);
  gpu.Synchronize(device, rank.stream);
  return Microseconds(std::chrono::steady_clock::now() - begin) / copies;
}

StandaloneResult TimeEmpty(Gpu& gpu, int ranks, int launches) {
  std::vector<std::unique_ptr<Rank>> places;
  for (int r = 0; r < ranks; ++r) {
    const int device = r % gpu.DeviceCount();
    gpu.Prepare(device);
    places.push_back(std::make_unique<Rank>(gpu, device, 0, 0));
  }
  const auto launch = [&] {
    for (auto& rank : places) gpu.LaunchEmpty(rank->device, rank->stream);
  };
  const auto await = [&] {
    for (auto& rank : places) gpu.Synchronize(rank->device, rank->stream);
  };
  launch();
  await();
  StandaloneResult result;
  Clock(launches, launch, await, &result);
  return result;
}

}  // namespace jaxring::cuda
