#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/sim/fake/driver_fake.h"
#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/machine.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {
namespace {

std::atomic<int> readers{0};

struct Event {
  Mark mark;
  int capture = -1;  // where it was recorded
};

void Replay(const Graph& graph) {
  std::map<Mark, Mark> fresh;  // each replay's events are its own
  const auto renewed = [&](const Mark& mark) {
    if (!mark) return mark;
    Mark& now = fresh[mark];
    if (!now) now = std::make_shared<Come>();
    return now;
  };
  for (auto [stream, task] : graph) {
    task.sets = renewed(task.sets);
    task.awaits = renewed(task.awaits);
    Machine::Get().Push(stream, task);
  }
}

class Streams final : public GpuStreams {
 public:
  void* New(int) override { return StreamOfNumber(Machine::Get().NewStream()); }
  void Close(int, void* stream) override { Machine::Get().CloseStream(NumberOf(stream)); }
  void Synchronize(int, void* stream) override { Machine::Get().Synchronize(NumberOf(stream)); }
  void* NewSide(int device) override {
    CheckNotCapturing();
    return New(device);
  }

  void CopyAsync(void* to, const void* from, uint64_t bytes, void* stream) override {
    Machine::Get().Push(NumberOf(stream), {[=] { std::memcpy(to, from, bytes); }, {}});
  }
  void ClearAsync(int, void* memory, uint64_t bytes, void* stream) override {
    Machine::Get().Push(NumberOf(stream), {[=] { std::memset(memory, 0, bytes); }, {}});
  }
  void ReadBehind(void* stream, void* to, const void* from, uint64_t bytes) override {
    if (Capturing(stream)) throw GpuError("operation not permitted when stream is capturing");
    const Allocation found = FakeMemory().Find(to);
    const bool pinned = found.base != nullptr && found.device < 0;
    std::unique_lock<std::mutex> held;
    if (!pinned) held = HoldDriver();
    ++readers;
    Machine::Get().Synchronize(NumberOf(stream));
    --readers;
    std::memcpy(to, from, bytes);
  }

  void* NewEvent(int) override {
    CheckNotCapturing();
    return new Event;
  }
  void Record(void* event, void* stream) override {
    auto& mine = *static_cast<Event*>(event);
    mine.mark = std::make_shared<Come>();
    mine.capture = Machine::Get().Recorded(NumberOf(stream), mine.mark);
  }
  void Follow(void* stream, void* event) override {
    const auto& mine = *static_cast<Event*>(event);
    if (mine.mark) Machine::Get().Await(NumberOf(stream), mine.mark, mine.capture);
  }
  void CloseEvent(int, void* event) override { delete static_cast<Event*>(event); }

  bool Capturing(void* stream) override { return Machine::Get().Capturing(NumberOf(stream)); }
  std::function<void()> Capture(int, void* stream, const std::function<void()>& enqueue) override {
    Machine::Get().BeginCapture(NumberOf(stream));
    SetCapturing(true);
    try {
      enqueue();
    } catch (...) {
      SetCapturing(false);
      Machine::Get().EndCapture(NumberOf(stream));
      throw;
    }
    SetCapturing(false);
    return [graph = Machine::Get().EndCapture(NumberOf(stream))] { Replay(graph); };
  }
};

}  // namespace

GpuStreams& FakeStreams() {
  static auto* streams = new Streams;
  return *streams;
}

int Readers() { return readers; }

}  // namespace jaxring::cuda::fake
