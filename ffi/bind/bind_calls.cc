#include "bind/bind_calls.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/condition_variable.h"
#include "base/mutex.h"

namespace jaxring {
namespace {

// Waits for the end of one rank's call.
struct Ended {
  const std::thread::id caller = std::this_thread::get_id();
  Mutex mutex;
  ConditionVariable changed;
  bool is JAXRING_GUARDED_BY(mutex) = false;
  bool here = false;  // set without the lock if `caller` itself ends the call
  Status status;
  void Set(const Status& s) {
    if (std::this_thread::get_id() == caller) {
      status = s;
      here = true;
      return;
    }
    // Holds the lock to the end: the waiting thread destroys this object as soon as it gets the lock.
    MutexLock lock(mutex);
    status = s;
    is = true;
    changed.NotifyAll();
  }
  // Called by the thread that made this object.
  void Wait() {
    if (here) return;
    MutexLock lock(mutex);
    while (!is) changed.Wait(mutex);
  }
};

// One rank's blocks of a ragged collective, from four numbers for each of its peers.
std::unique_ptr<Extents> RaggedExtents(nanobind::handle numbers, size_t ranks, uint64_t in, uint64_t out) {
  const HeldBuffer held(numbers, false);
  if (held.bytes() != 4 * ranks * sizeof(uint64_t)) throw std::invalid_argument("the blocks do not fit the plan");
  auto extents = std::make_unique<Extents>();
  const auto* from = static_cast<const uint64_t*>(held.data());
  for (auto* to : {&extents->in_offset, &extents->in_length, &extents->out_offset, &extents->out_length}) {
    to->assign(from, from + ranks);
    from += ranks;
  }
  const auto inside = [&](const std::vector<uint64_t>& offset, const std::vector<uint64_t>& length, uint64_t end) {
    for (size_t i = 0; i < ranks; ++i) {
      if (offset[i] > end || length[i] > end - offset[i])
        throw std::invalid_argument("a block lies outside its buffer");
    }
  };
  inside(extents->in_offset, extents->in_length, in);
  inside(extents->out_offset, extents->out_length, out);
  extents->expected = extents->out_length;
  return extents;
}

}  // namespace

void BufferCall::Run(const void* in, uint64_t in_bytes, void* out, uint64_t out_bytes) {
  Ended ended;
  {
    nanobind::gil_scoped_release release;
    std::atomic<int64_t>& in_flight = Running().counters().in_flight;
    in_flight.fetch_add(1, std::memory_order_relaxed);
    Arrival arrival;
    arrival.partition = rank_;
    arrival.device = device_;
    arrival.run_id = run_++;
    arrival.in_bytes = in_bytes;
    arrival.out_bytes = out_bytes;
    arrival.participant.in = in;
    arrival.participant.out = out;
    arrival.participant.done = [&ended](const Status& status) { ended.Set(status); };
    arrival.participant.done_is_quick = true;
    arrival.participant.waits = true;
    site_->Arrive(std::move(arrival));
    ended.Wait();
    in_flight.fetch_sub(1, std::memory_order_relaxed);
  }
  if (!ended.status.ok()) throw std::runtime_error(Running().options().ToMessage(ended.status));
}

void ExecuteOnce(std::shared_ptr<const Plan> plan, const nanobind::list& operands, const nanobind::list& results,
                 const nanobind::list& blocks) {
  std::vector<std::unique_ptr<HeldBuffer>> in, out;
  for (nanobind::handle each : operands) in.push_back(std::make_unique<HeldBuffer>(each, false));
  for (nanobind::handle each : results) out.push_back(std::make_unique<HeldBuffer>(each, true));
  if (plan->codes) throw std::invalid_argument("a plan in codes cannot be played by itself");
  if (plan->epilogue != nullptr) throw std::invalid_argument("a plan with an epilogue cannot be played by itself");
  const size_t ranks = plan->group.locals.size();
  const bool ragged = blocks.size() > 0;
  bool fits = plan->alone() && in.size() == ranks && out.size() == ranks && (!ragged || blocks.size() == ranks);
  // A ragged plan's chunks are its blocks.
  const int each_way = static_cast<int>(ranks);
  if (ragged)
    fits = fits && plan->shape.pieces == 1 && plan->shape.in_blocks == each_way && plan->shape.out_blocks == each_way;
  for (size_t i = 0; fits && !ragged && i < ranks; ++i) {
    fits = in[i]->bytes() == plan->in_bytes() && out[i]->bytes() == plan->out_bytes();
  }
  if (!fits) throw std::invalid_argument("the buffers do not fit the plan");
  std::vector<Ended> ended(ranks);
  std::vector<Participant> participants(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    participants[i].rank = plan->group.locals[i].rank;
    participants[i].in = in[i]->data();
    participants[i].out = out[i]->data();
    if (ragged) {
      const uint64_t element = plan->data.element_bytes;
      participants[i].extents = RaggedExtents(blocks[i], ranks, in[i]->bytes() / element, out[i]->bytes() / element);
    }
    participants[i].done = [&ended, i](const Status& status) { ended[i].Set(status); };
  }
  // A rank copies as many elements from another's memory as the receiver's length says, so both must agree.
  for (size_t s = 0; ragged && s < ranks; ++s) {
    for (size_t r = 0; r < ranks; ++r) {
      if (participants[s].extents->in_length[r] != participants[r].extents->out_length[s])
        throw std::invalid_argument("the ranks' blocks do not fit each other");
    }
  }
  {
    nanobind::gil_scoped_release release;
    const auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan->timeout_s));
    const uint64_t key = plan->key;
    auto op = std::make_shared<Operation>(std::move(plan), key, std::move(participants), Clock::now() + limit);
    Running().workers().Start();
    Running().Launch({&op, 1}, false);
    for (Ended& each : ended) each.Wait();
  }
  for (const Ended& each : ended) {
    if (!each.status.ok()) throw std::runtime_error(each.status.message);
  }
}

void BindCalls(nanobind::module_& m) {
  namespace nb = nanobind;
  nb::class_<BufferCall>(m, "BufferCall", "One rank's side of a collective on host buffers, for repeated calls.")
      .def(nb::init<const std::string&, const std::vector<int32_t>&, int, int, double>(), nb::arg("spec"),
           nb::arg("ranks"), nb::arg("rank"), nb::arg("device"), nb::arg("timeout_s"))
      .def("beside", &BufferCall::Beside, nb::arg("rank"), nb::arg("device"),
           "The side of another rank of this process, to be called as often, from another thread.")
      .def("__call__", nb::overload_cast<nb::handle, nb::handle>(&BufferCall::Run), nb::arg("operand"),
           nb::arg("result"), "Runs it once, to its end, on contiguous buffers. Raises RuntimeError if it fails.");
}

}  // namespace jaxring
