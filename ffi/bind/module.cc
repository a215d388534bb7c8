// The Python module jaxring._native: starts the engine, serves planning requests, makes links, and exports XLA
// handlers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <set>
#include <stdexcept>

#include "bind/bind_calls.h"
#include "bind/bind_links.h"
#include "bind/bind_plans.h"
#include "bind/bind_protobuf.h"
#include "bind/bind_recent.h"
#include "bind/bind_records.h"
#include "bind/bind_signals.h"
#include "bind/shared_network.h"
#include "engine/calls/site_names.h"
#include "engine/operation/pages.h"
#include "engine/runtime.h"
#include "engine/signals/dump_signal.h"
#include "engine/site.h"
#include "jaxring_config.h"
#include "reduce/exact/digits.h"
#include "xla/cpu_handlers.h"
#include "xla/exact_sum_handlers.h"
#include "xla/quantize_handlers.h"

namespace nb = nanobind;

namespace jaxring {
namespace {

nb::typed<nb::dict, nb::str, nb::int_> Counters() {
  nb::typed<nb::dict, nb::str, nb::int_> result;
  ProcessEngine* engine = RunningEngine();
  if (engine == nullptr) return result;
  const EngineCounters& c = engine->counters();
  result["sites"] = c.sites.load();
  result["in_flight"] = c.in_flight.load();
  result["operations"] = c.operations.load();
  result["inline_operations"] = c.inline_operations.load();
  result["failures"] = c.failures.load();
  result["sleeps"] = c.sleeps.load();
  result["moves"] = c.moves.load();
  result["wakes"] = Doorbell::wakes();
  result["injected_faults"] = Faults::injected();
  result["sent_bytes"] = c.sent_bytes.load();
  result["spilled_messages"] = c.spills.load();
  const auto unexpected = engine->network().unexpected().bytes();
  result["unexpected_bytes"] = unexpected;
  result["stashed_bytes"] = unexpected;  // the former name, which stays for one release
  result["link_bytes"] = engine->network().links().MemoryBytes();
  return result;
}

}  // namespace
}  // namespace jaxring

NB_MODULE(_native, m) {
  using namespace jaxring;
  m.doc() = "jaxring's native engine.";
  m.def("build_info", [] {
    nb::typed<nb::dict, nb::str, nb::str> info;
    info["version"] = JAXRING_VERSION;
    info["ffi_api"] = JAXRING_FFI_API;
    info["cuda_version"] = JAXRING_CUDA_VERSION;
    info["compiler"] = JAXRING_COMPILER;
    info["build_type"] = JAXRING_BUILD_TYPE;
    info["instruction_set"] = InstructionSet();
    return info;
  });
  m.def(
      "exact_words",
      [](int dtype, int width) {
        if (dtype < 0 || dtype >= kDTypeCount || width < 1 || width > 32) throw std::invalid_argument("no such sum");
        return ExactWords(static_cast<DType>(dtype), width);
      },
      nb::arg("dtype"), nb::arg("width"),
      "Words of 32 bits of an exact sum in digits of `width` bits; 0 for a dtype that has none.");
  m.def(
      "handlers",
      [] {
        nb::typed<nb::dict, nb::str, nb::capsule> handlers;
        handlers["instantiate"] = nb::capsule(reinterpret_cast<void*>(CpuInstantiate), "xla._CUSTOM_CALL_TARGET");
        handlers["collective"] = nb::capsule(reinterpret_cast<void*>(CpuCollective), "xla._CUSTOM_CALL_TARGET");
        handlers["done"] = nb::capsule(reinterpret_cast<void*>(CpuDone), "xla._CUSTOM_CALL_TARGET");
        handlers["exact_give"] = nb::capsule(reinterpret_cast<void*>(CpuGiveExactSums), "xla._CUSTOM_CALL_TARGET");
        handlers["exact_round"] = nb::capsule(reinterpret_cast<void*>(CpuRoundExactSums), "xla._CUSTOM_CALL_TARGET");
        handlers["ragged"] = nb::capsule(reinterpret_cast<void*>(CpuRagged), "xla._CUSTOM_CALL_TARGET");
        handlers["quantize"] = nb::capsule(reinterpret_cast<void*>(CpuQuantize), "xla._CUSTOM_CALL_TARGET");
        handlers["sum_quantized"] = nb::capsule(reinterpret_cast<void*>(CpuSumQuantized), "xla._CUSTOM_CALL_TARGET");
        handlers["dequantize"] = nb::capsule(reinterpret_cast<void*>(CpuDequantize), "xla._CUSTOM_CALL_TARGET");
        return handlers;
      },
      "The CPU handlers as capsules for jax.ffi.register_ffi_target.");
  m.def(
      "start",
      [](int threads, uint32_t slot_bytes, int64_t spin_us, int64_t patience_us, const std::string& trace_file,
         bool checksums, const std::map<std::string, double>& faults, const std::string& non_finite,
         double link_timeout_s, const std::string& record_hint, const std::string& operand_files,
         uint64_t operand_bytes, double stall_warning_s) {
        EngineOptions options{threads, slot_bytes, spin_us, patience_us};
        options.trace_file = trace_file;
        options.checksums = checksums;
        options.link_timeout_s = link_timeout_s;
        options.record_hint = record_hint;
        options.operand_files = operand_files;
        options.operand_bytes = operand_bytes;
        options.stall_warning_s = stall_warning_s;
        options.faults = FaultPlan::From(faults);
        using NonFinite = EngineOptions::NonFinite;
        options.non_finite = non_finite == "error"  ? NonFinite::kFail
                             : non_finite == "warn" ? NonFinite::kWarn
                                                    : NonFinite::kIgnore;
        StartEngine(options);
      },
      nb::arg("threads"), nb::arg("slot_bytes"), nb::arg("spin_us"), nb::arg("patience_us"), nb::arg("trace_file") = "",
      nb::arg("checksums") = false, nb::arg("faults") = std::map<std::string, double>(), nb::arg("non_finite") = "",
      nb::arg("link_timeout_s") = 10.0, nb::arg("record_hint") = "", nb::arg("operand_files") = "",
      nb::arg("operand_bytes") = 0, nb::arg("stall_warning_s") = 0.0,
      "Starts the engine, once. Its flight record is kept in a new file, or in unnamed memory without one. `faults` "
      "has "
      "the fields of JAXRING_FAULTS.");
  m.def(
      "name_process",
      [](int process, int processes, const std::string& job) { Running().recorder().Name(process, processes, job); },
      nb::arg("process"), nb::arg("processes"), nb::arg("job"),
      "Writes the number of this process, the number of processes and the job's name into the flight record.");
  m.def(
      "dump_on_signal",
      [](const std::string& prefix) {
        const auto [record, bytes] = Running().recorder().memory();
        DumpOnSignal(record, bytes, prefix);
      },
      nb::arg("prefix"),
      "Makes SIGUSR1 write the flight record to PREFIX0.trace, then PREFIX1.trace, ..., unless it has a handler. With "
      "an "
      "empty prefix SIGUSR1 has no effect.");
  m.def(
      "record_memory",
      [] {
        const auto [record, bytes] = Running().recorder().memory();
        return nb::bytes(record, bytes);
      },
      "A copy of the flight record, in the format of its file.");
  m.def("dump_now", &DumpNow, nb::arg("say") = true, nb::call_guard<nb::gil_scoped_release>(),
        "Does what SIGUSR1 does; with `say` off it does not say where the record is.");
  m.def("keep_freed_blocks", &KeepFreedBlocks, nb::arg("bytes"),
        "Makes malloc keep freed blocks of up to so many bytes. False if the C library cannot do it.");
  m.def(
      "abort",
      [](const std::string& reason, double timeout_s, bool goodbye, const std::string& how) {
        if (RunningEngine() != nullptr) RunningEngine()->Abort(reason, timeout_s, goodbye, how);
      },
      nb::arg("reason"), nb::arg("timeout_s"), nb::arg("goodbye"), nb::arg("how") = "",
      nb::call_guard<nb::gil_scoped_release>(),
      "Fails all operations in flight and all later ones; waits timeout_s seconds at most for those in flight. Tells "
      "the "
      "other processes that this one ends, in good order if `goodbye`, and `how`.");
  m.def(
      "halt", [](const std::string& reason, bool tell) { return Running().Halt(reason, tell); }, nb::arg("reason"),
      nb::arg("tell"), nb::call_guard<nb::gil_scoped_release>(),
      "Fails every operation until `resume`, with `tell` also in all linked processes. False if already halted.");
  m.def(
      "planning_waits_for",
      [](const std::string& words) {
        if (RunningEngine() != nullptr) RunningEngine()->python().PlanningWaitsFor(words);
      },
      nb::arg("words"),
      "Sets what planning waits for, for the errors of calls that get no plan in time; empty: nothing.");
  m.def(
      "troubled", [] { return Running().network().failures().Troubled(); },
      "Whether an operation has failed that other processes take part in.");
  m.def("halted", [] { return Running().halting().Reason(); }, "Why the engine is halted, or None.");
  m.def("gone", [] { return Running().network().peers().Gone(); }, "The processes that are known to have ended.");
  m.def(
      "renew", [](uint64_t epoch, double timeout_s) { return Running().Renew(epoch, timeout_s); }, nb::arg("epoch"),
      nb::arg("timeout_s"), nb::call_guard<nb::gil_scoped_release>(),
      "Begins a new epoch of the halted engine: drops links, plans and failures. False if an operation has not ended "
      "in "
      "time.");
  m.def("resume", [] { Running().halting().Resume(); }, "Ends what `halt` began.");
  m.def("end_program", &EndProgram, nb::arg("specs"),
        "Says that a program with these specs has been compiled: calls that are instantiated later belong to others.");
  m.def("counters", &Counters, "What the engine has counted so far.");
  m.def(
      "set_in_other_hosts", [](size_t count) { Running().workers().waits().SetInOtherHosts(count); }, nb::arg("count"),
      "How many processes run on this one's CPUs that count as other hosts, as those of other containers do.");
  m.def(
      "wait_policy", [] { return Running().workers().waits().current().Describe(); },
      "How threads wait at the moment, such as \"poll for 300 us, ..., then sleep\".");
  BindRecords(m);
  m.def(
      "take_warnings",
      [] { return RunningEngine() == nullptr ? std::vector<std::string>{} : Running().warnings().Take(); },
      "Warnings for the log since the last call.");
  m.def(
      "next_stall", [](double timeout_s) { return Running().python().NextStall(timeout_s); }, nb::arg("timeout_s"),
      nb::call_guard<nb::gil_scoped_release>(),
      "A warning about a long wait of this process, without its subject; None after timeout_s seconds.");
  m.def("clock", [] { return Nanoseconds(std::chrono::steady_clock::now()); }, "Now, in ns of the recorder's clock.");

  nb::class_<ControlMessage>(m, "ControlMessage", "What the Python of another process has sent.")
      .def_ro("sender", &ControlMessage::sender, "The number of its process.")
      .def_ro("text", &ControlMessage::text);
  m.def(
      "send_control_message",
      [](int process, const std::string& text) { Running().network().peers().SendMessage(process, text); },
      nb::arg("process"), nb::arg("text"), nb::call_guard<nb::gil_scoped_release>(),
      "Sends a control message of at most 3072 bytes to another process, in order; queued until the two are "
      "connected.");
  m.def(
      "next_control_message",
      []() -> nb::object {
        auto message = Running().python().NextControlMessage();
        return message ? nb::cast(*message) : nb::none();
      },
      nb::sig("def next_control_message() -> ControlMessage | None"),
      "The next control message that has arrived, or None.");
  m.def(
      "in_flight", [](uint64_t key) { return Running().InFlight(key); }, nb::arg("key"),
      "Whether an operation is in flight under a plan's key.");
  m.def(
      "fail_plan",
      [](uint64_t key, int code, const std::string& message) {
        Running().FailPlan(key, Status::Error(static_cast<Code>(code), message));
      },
      nb::arg("key"), nb::arg("code"), nb::arg("message"), nb::call_guard<nb::gil_scoped_release>(),
      "Fails the operations in flight under a plan's key, here and in all processes that take part.");

  m.def(
      "network",
      [] {
        static const auto* const shared =
            new SharedNetwork{&Running().network(), [&python = Running().python()] { python.Wake(); }};
        return shared->ToCapsule();
      },
      "The network of this process, for the CUDA engine's module.");
  m.def("ll_payload_bytes", [] { return LLShape().payload_bytes; }, "Payload of an LL slot.");
  BindPlans(m);
  BindProtobuf(m);
  BindLinks(m);
  BindCalls(m);
  BindRecent(m);
  BindSignals(m);
}
