#include "bind/bind_signals.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "bind/bind_links.h"
#include "engine/signals/signals.h"

namespace jaxring {
namespace {

// Counts what the main thread was asked to do, and did, when it was back in the interpreter.
struct MainThread {
  std::atomic<uintptr_t> asked{0}, did{0};
  // Needs no GIL. The main thread runs handlers of signals first.
  void Ask() {
    const uintptr_t number = asked.fetch_add(1) + 1;
    const int full = Py_AddPendingCall(
        [](void* argument) {
          Instance().did.store(reinterpret_cast<uintptr_t>(argument));
          return 0;
        },
        reinterpret_cast<void*>(number));
    if (full != 0) did.store(number);  // so many calls wait for it that others see to it
  }
  bool IsBack() const { return did.load() == asked.load(); }
  static MainThread& Instance() {
    static MainThread instance;
    return instance;
  }
};

// Runs the handlers of signals that have come. What they raise is raised from where the main thread is.
bool HandlersRaise() {
  if (PyErr_CheckSignals() == 0) return false;
  if (PyFrameObject* frame = PyEval_GetFrame()) PyTraceBack_Here(frame);
  return true;
}

// Has those handlers run before an exception passes through a frame of the main thread; what they raise replaces it.
// False where that cannot be, because somebody else traces that thread or this Python has `sys.monitoring` for it.
bool RaiseSignalsFirst([[maybe_unused]] unsigned long main_thread, [[maybe_unused]] bool first) {
#if PY_VERSION_HEX < 0x030C0000
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
  while (state != nullptr && state->thread_id != main_thread) state = PyThreadState_Next(state);
  if (state == nullptr) return false;
  const Py_tracefunc trace = [](PyObject*, PyFrameObject*, int what, PyObject*) {
    return what == PyTrace_EXCEPTION && HandlersRaise() ? -1 : 0;
  };
  if (state->c_tracefunc != nullptr && state->c_tracefunc != trace) return false;
  if (_PyEval_SetTrace(state, first ? trace : nullptr, nullptr) != 0) throw nanobind::python_error();
  return true;
#else
  return false;
#endif
}

// Ends this process by a signal's default action, unless it has ended before: after `seconds`, or `more` later where
// all `others` have ended or are about to. Needs no Python, which may be gone by then.
void EndLater(int number, double seconds, double more, std::vector<int> others) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const std::vector<int> gone = RunningEngine() == nullptr ? std::vector<int>{} : RunningEngine()->Gone();
    const bool together = std::all_of(others.begin(), others.end(), [&](int process) {
      return std::find(gone.begin(), gone.end(), process) != gone.end();
    });
    if (together) std::this_thread::sleep_for(std::chrono::duration<double>(more));
    EndBySignal(number);
  }).detach();
}

}  // namespace

void BindSignals(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def("watch_signals", &WatchSignals, "From now on `await_signal` hears of SIGINT and SIGTERM that have handlers.");
  m.def("stop_watching_signals", &StopWatching, "Has `await_signal` return 0 from now on.");
  m.def(
      "await_signal",
      [](double timeout_s) {
        nb::gil_scoped_release release;
        const int number = AwaitSignal(timeout_s);
        if (number != 0) MainThread::Instance().Ask();
        return number;
      },
      nb::arg("timeout_s"),
      "The number of a signal that has come, else 0 after timeout_s seconds; negative: no limit.");
  m.def(
      "main_thread_is_back", [] { return MainThread::Instance().IsBack(); },
      "Whether the main thread has been in the interpreter since `await_signal` last returned a signal.");
  m.def("handler_file", &HandlerFile, nb::arg("number"),
        "Where the native handler of a signal is; empty: there is none.");
  m.def("end_later", &EndLater, nb::arg("number"), nb::arg("seconds"), nb::arg("more"), nb::arg("others"),
        "Ends this process as `end_by_signal` does, so many seconds from now, and `more` where all others end, too.");
  m.def("end_by_signal", &EndBySignal, nb::arg("number"), "Ends this process by the default action of a signal.");
  m.def(
      "interrupt",
      [](const std::string& reason, double age_s) {
        const auto age = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(age_s));
        return RunningEngine() != nullptr && RunningEngine()->Interrupt(reason, Clock::now() - age);
      },
      nb::arg("reason"), nb::arg("age_s"), nb::call_guard<nb::gil_scoped_release>(),
      "Fails what has been in flight for age_s seconds, in all processes that take part. Whether there was any.");
  m.def(
      "say_leaving",
      [](const std::string& why) {
        if (RunningEngine() != nullptr) RunningEngine()->SayLeaving(why);
      },
      nb::arg("why"), nb::call_guard<nb::gil_scoped_release>(),
      "Tells the other processes that this one ends, and why. Nothing ends here.");
  m.def("raise_signals_first", &RaiseSignalsFirst, nb::arg("main_thread"), nb::arg("first"),
        "Whether what handlers of signals raise replaces the next exception of the main thread; before Python 3.12.");
  m.def(
      "raise_signals",
      [](const nb::args&) {
        if (HandlersRaise()) throw nb::python_error();
      },
      nb::sig("def raise_signals(*arguments: object) -> None"),
      "Runs the handlers of signals that have come, if this is the main thread.");
}

}  // namespace jaxring
