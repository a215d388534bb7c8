#include "bind/bind_records.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "engine/runtime.h"

namespace nb = nanobind;

namespace jaxring {
namespace {

// Nothing where the engine does not run.
std::vector<Arrivals> TakeArrivals() {
  ProcessEngine* engine = RunningEngine();
  return engine == nullptr ? std::vector<Arrivals>{} : engine->network().peers().TakeArrivals();
}

std::optional<OperationRecord> RecordAt(uint64_t number) {
  ProcessEngine* engine = RunningEngine();
  return engine == nullptr ? std::nullopt : engine->recorder().At(number);
}

std::vector<OperationRecord> Records(uint64_t after) {
  ProcessEngine* engine = RunningEngine();
  return engine == nullptr ? std::vector<OperationRecord>{} : engine->recorder().After(after);
}

const char* Word(OperationState state) {
  switch (state) {
    case OperationState::kRunning:
      return "running";
    case OperationState::kDone:
      return "done";
    case OperationState::kFailed:
      return "failed";
  }
  return "unknown";
}

void BindArrivals(nb::module_& m) {
  nb::class_<LaunchTime>(m, "LaunchTime", "The launch of an operation, by the clock of the process that launched it.")
      .def_ro("key", &LaunchTime::key)
      .def_ro("sequence", &LaunchTime::sequence)
      .def_ro("launched_ns", &LaunchTime::launched_ns)
      .def_ro("idle_ns", &LaunchTime::idle_ns, "Since the operation before it ended; -1: not known.");
  nb::class_<SharedLaunch>(m, "SharedLaunch", "An operation that this process and another one have launched.")
      .def_ro("number", &SharedLaunch::number, "Of this process's record.")
      .def_ro("own", &SharedLaunch::own)
      .def_ro("theirs", &SharedLaunch::theirs);
  nb::class_<ResourceSample>(m, "ResourceSample",
                             "What a process has spent so far, and its slowest connection since the sample before.")
      .def_ro("at_ns", &ResourceSample::at_ns)
      .def_ro("cpu_ns", &ResourceSample::cpu_ns)
      .def_ro("delayed_ns", &ResourceSample::delayed_ns)
      .def_ro("link_peer", &ResourceSample::link_peer)
      .def_ro("link_bytes", &ResourceSample::link_bytes)
      .def_ro("link_ns", &ResourceSample::link_ns)
      .def_ro("resumable", &ResourceSample::resumable)
      .def_ro("detours", &ResourceSample::detours);
  nb::class_<Arrivals>(m, "Arrivals", "What the heartbeats of a process have said; of this process (-1) its samples.")
      .def_ro("process", &Arrivals::process)
      .def_prop_ro(
          "offset_ns", [](const Arrivals& a) { return a.clock.offset_ns; }, "Its clock less this one's.")
      .def_prop_ro(
          "error_ns", [](const Arrivals& a) { return a.clock.error_ns; }, "-1: the clocks are not compared.")
      .def_ro("shared_launches", &Arrivals::shared_launches)
      .def_ro("samples", &Arrivals::samples);
  m.def("take_arrivals", &TakeArrivals,
        "What the heartbeats of the connected processes have said since the last call; first of this process itself.");
  m.def("record", &RecordAt, nb::arg("number"), "The record of the operation with this number, if it is still there.");
}

}  // namespace

void BindRecords(nb::module_& m) {
  nb::class_<OperationRecord>(m, "OperationRecord",
                              "One operation. Times are ns of `clock`; `ended` is 0 while it runs.")
      .def_ro("number", &OperationRecord::number)
      .def_ro("sequence", &OperationRecord::sequence)
      .def_ro("what", &OperationRecord::what)
      .def_ro("label", &OperationRecord::label)
      .def_prop_ro("arrived", [](const OperationRecord& r) { return Nanoseconds(r.arrived); })
      .def_prop_ro("launched", [](const OperationRecord& r) { return Nanoseconds(r.launched); })
      .def_prop_ro("ended", [](const OperationRecord& r) { return Nanoseconds(r.ended); })
      .def_prop_ro(
          "state", [](const OperationRecord& r) { return Word(r.state); }, "\"running\", \"done\" or \"failed\".");
  m.def("records", &Records, nb::arg("after"), nb::call_guard<nb::gil_scoped_release>(),
        "The recorded operations numbered above `after`, oldest first.");
  BindArrivals(m);
}

}  // namespace jaxring
