#include "cuda/host/standalone.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>

namespace jaxring::cuda {
namespace {

double Microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

// Device memory, a stream and an event of one rank, freed by the destructor.
struct Rank {
  Rank(Gpu& g, int d, uint64_t in_bytes, uint64_t out_bytes) : gpu(g), device(d) {
    for (char*& each : in) each = gpu.memory.Allocate(device, in_bytes + 1);
    out = gpu.memory.Allocate(device, out_bytes + 1);
    stream = gpu.streams.New(device);
    event = gpu.streams.NewEvent(device);
  }
  ~Rank() {
    try {
      for (char* each : in) gpu.memory.Free(device, each);
      gpu.memory.Free(device, out);
      gpu.streams.CloseEvent(device, event);
      gpu.streams.Close(device, stream);
    } catch (const GpuError&) {  // the context is lost, which frees its memory
    }
  }
  Rank(const Rank&) = delete;
  Gpu& gpu;
  int device;
  char *in[2], *out;
  void *stream, *event;
};
using Ranks = std::vector<std::unique_ptr<Rank>>;

// A graph of what `enqueue` puts on the ranks' streams.
std::function<void()> CaptureAll(GpuStreams& streams, Ranks& ranks, const std::function<void()>& enqueue) {
  Rank& first = *ranks.front();
  return streams.Capture(first.device, first.stream, [&] {
    streams.Record(first.event, first.stream);
    for (size_t r = 1; r < ranks.size(); ++r) streams.Follow(ranks[r]->stream, first.event);
    enqueue();
    for (size_t r = 1; r < ranks.size(); ++r) {
      streams.Record(ranks[r]->event, ranks[r]->stream);
      streams.Follow(first.stream, ranks[r]->event);
    }
  });
}

// Measures a result's times by repeated calls of `launch`, for all ranks, and `await`. launch(i) has the inputs i % 2;
// the last launch of each measurement has inputs 0.
template <class Launch, class Await, class Result>
void Clock(GpuStreams& streams, Ranks& ranks, int launches, Timed timed, Launch launch, Await await, Result* result) {
  const auto all = [&] {
    for (int i = launches; i-- > 0;) launch(i);
  };
  if (timed == Timed::kInGraph) {
    const std::function<void()> graph = CaptureAll(streams, ranks, all);
    constexpr int kReplays = 5;
    graph();  // its first launch also uploads it
    await();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kReplays; ++i) graph();
    await();
    result->microseconds = Microseconds(std::chrono::steady_clock::now() - begin) / kReplays / launches;
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  all();
  await();
  result->microseconds = Microseconds(std::chrono::steady_clock::now() - begin) / launches;
  std::vector<double> waited;
  for (int i = launches; i-- > 0;) {
    const auto start = std::chrono::steady_clock::now();
    launch(i);
    await();
    waited.push_back(Microseconds(std::chrono::steady_clock::now() - start));
  }
  std::nth_element(waited.begin(), waited.begin() + launches / 2, waited.end());
  result->waited = waited[launches / 2];
}

// Buffers for each of the plan's ranks.
Ranks MakeRanks(LaunchPlan& plan) {
  Communicator& group = plan.communicator();
  const auto& infos = group.ranks().spec().ranks;
  Ranks ranks;
  for (size_t r = 0; r < infos.size(); ++r) {
    if (!group.ranks().local(static_cast<int>(r))) {
      throw std::invalid_argument("a standalone run needs all ranks in this process, and rank " + std::to_string(r) +
                                  " is in another");
    }
    ranks.push_back(std::make_unique<Rank>(group.gpu(), infos[r].device, plan.in_bytes(), plan.out_bytes()));
  }
  return ranks;
}

// Runs the plan; `read` gives a rank's output.
template <class Read>
auto Play(LaunchPlan& plan, Ranks& ranks, int launches, Timed timed, Read read) {
  GpuStreams& streams = plan.communicator().gpu().streams;
  const auto launch = [&](int i) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      const jaxring::Status status = plan.Launch(static_cast<int>(r), ranks[r]->in[i % 2], ranks[r]->out,
                                                 plan.in_bytes(), plan.out_bytes(), ranks[r]->stream);
      if (!status.ok()) throw std::runtime_error(status.message);
    }
  };
  // A kernel that has trapped leaves the driver without words for it; what it has recorded says more.
  const auto await = [&] {
    try {
      for (auto& rank : ranks) streams.Synchronize(rank->device, rank->stream);
    } catch (const GpuError& error) {
      if (std::string fault = plan.Fault(); !fault.empty()) throw std::runtime_error(fault + "; " + error.what());
      throw;
    }
    if (std::string fault = plan.Fault(); !fault.empty()) throw std::runtime_error(fault);
  };
  const auto outputs = [&] {
    std::vector<decltype(read(*ranks.front()))> found;
    for (auto& rank : ranks) found.push_back(read(*rank));
    return found;
  };
  StandaloneResult<decltype(read(*ranks.front()))> result;
  for (int i : {0, 1}) {
    launch(i);
    await();
  }
  result.other_outputs = outputs();
  if (launches > 0) {
    Clock(streams, ranks, launches, timed, launch, await, &result);
  } else {
    launch(0);
    await();
  }
  result.outputs = outputs();
  return result;
}

// Fills memory with a word: a part from the host, and the rest from what is there already.
void Fill(Gpu& gpu, Rank& rank, char* memory, uint64_t bytes, uint32_t word) {
  const std::vector<uint32_t> first(std::min<uint64_t>(bytes, 65536) / 4, word);
  uint64_t done = 4 * first.size();
  gpu.memory.Copy(rank.device, memory, first.data(), done);
  while (done < bytes) {
    const uint64_t more = std::min(done, bytes - done);
    gpu.streams.CopyAsync(memory + done, memory, more, rank.stream);
    done += more;
  }
  gpu.streams.Synchronize(rank.device, rank.stream);
}

// The word that the rank's output consists of, which is read part by part into `pinned` memory of so many bytes.
uint32_t WordOf(GpuMemory& memory, const Rank& rank, uint64_t bytes, char* pinned, uint64_t pinned_bytes) {
  uint32_t word = 0;
  for (uint64_t at = 0; at < bytes; at += pinned_bytes) {
    const uint64_t part = std::min(pinned_bytes, bytes - at);
    memory.Copy(rank.device, pinned, rank.out + at, part);
    if (at == 0) std::memcpy(&word, pinned, 4);
    if (std::memcmp(pinned, &word, 4) != 0 || std::memcmp(pinned, pinned + 4, part - 4) != 0) {
      throw std::runtime_error("a rank's output of equal inputs differs between its first word and one of the " +
                               std::to_string(part) + " bytes from " + std::to_string(at) + " on");
    }
  }
  return word;
}

}  // namespace

StandaloneResult<std::string> RunStandalone(LaunchPlan& plan, const std::vector<std::string_view>& inputs,
                                            const std::vector<std::string_view>& others, int launches, Timed timed) {
  Gpu& gpu = plan.communicator().gpu();
  const std::vector<std::string_view>* given[2] = {&inputs, &others};
  Ranks ranks = MakeRanks(plan);
  for (int set = 0; set < 2; ++set) {
    if (given[set]->size() != ranks.size()) {
      throw std::invalid_argument("a standalone run of " + std::to_string(ranks.size()) + " ranks was given " +
                                  std::to_string(given[set]->size()) + " inputs");
    }
    for (size_t r = 0; r < ranks.size(); ++r) {
      const std::string_view input = (*given[set])[r];
      if (input.size() != plan.in_bytes()) {
        throw std::invalid_argument("the input of rank " + std::to_string(r) + " has " + std::to_string(input.size()) +
                                    " bytes, not " + std::to_string(plan.in_bytes()));
      }
      gpu.memory.Copy(ranks[r]->device, ranks[r]->in[set], input.data(), input.size());
    }
  }
  return Play(plan, ranks, launches, timed, [&](const Rank& rank) {
    std::string output(plan.out_bytes(), 0);
    gpu.memory.Copy(rank.device, output.data(), rank.out, output.size());
    return output;
  });
}

StandaloneResult<uint32_t> RunStandaloneWords(LaunchPlan& plan, uint32_t input, uint32_t other, int launches,
                                              Timed timed) {
  Gpu& gpu = plan.communicator().gpu();
  if (plan.in_bytes() % 4 != 0 || plan.out_bytes() % 4 != 0 || plan.in_bytes() == 0 || plan.out_bytes() == 0) {
    throw std::invalid_argument("inputs of " + std::to_string(plan.in_bytes()) + " and outputs of " +
                                std::to_string(plan.out_bytes()) + " bytes do not consist of words of four bytes");
  }
  Ranks ranks = MakeRanks(plan);
  for (auto& rank : ranks) {
    Fill(gpu, *rank, rank->in[0], plan.in_bytes(), input);
    Fill(gpu, *rank, rank->in[1], plan.in_bytes(), other);
  }
  const uint64_t part = std::min<uint64_t>(plan.out_bytes(), uint64_t{16} << 20);
  const std::unique_ptr<char, std::function<void(char*)>> pinned(gpu.memory.AllocatePinned(part), [&](char* memory) {
    try {
      gpu.memory.FreePinned(memory);
    } catch (const GpuError&) {  // the context is lost
    }
  });
  return Play(plan, ranks, launches, timed,
              [&](const Rank& rank) { return WordOf(gpu.memory, rank, plan.out_bytes(), pinned.get(), part); });
}

double TimeCopy(Gpu& gpu, int device, uint64_t bytes, int copies) {
  Rank rank(gpu, device, bytes, bytes);
  gpu.streams.CopyAsync(rank.out, rank.in[0], bytes, rank.stream);
  gpu.streams.Synchronize(device, rank.stream);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < copies; ++i) gpu.streams.CopyAsync(rank.out, rank.in[0], bytes, rank.stream);
  gpu.streams.Synchronize(device, rank.stream);
  return Microseconds(std::chrono::steady_clock::now() - begin) / copies;
}

StandaloneResult<std::string> TimeEmpty(Gpu& gpu, int ranks, int launches, Timed timed, int lanes, int threads) {
  Args args = {};
  args.shape.lanes = lanes;
  Ranks places;
  for (int r = 0; r < ranks; ++r) {
    const int device = r % gpu.devices.Count();
    gpu.devices.Prepare(device);
    places.push_back(std::make_unique<Rank>(gpu, device, 0, 0));
  }
  const auto launch = [&](int) {
    for (auto& rank : places) gpu.kernels.LaunchEmpty(rank->device, lanes > 0 ? &args : nullptr, threads, rank->stream);
  };
  const auto await = [&] {
    for (auto& rank : places) gpu.streams.Synchronize(rank->device, rank->stream);
  };
  launch(0);
  await();
  StandaloneResult<std::string> result;
  Clock(gpu.streams, places, launches, timed, launch, await, &result);
  return result;
}

}  // namespace jaxring::cuda
