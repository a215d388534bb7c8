#include "bind/bind_signals.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bind/bind_links.h"
#include "engine/signals/signals.h"

namespace jaxring {
namespace {

// Tells whether the main thread has been back in the interpreter: counts the calls that were requested of it and made.
struct MainThread {
  std::atomic<uintptr_t> asked{0}, did{0};
  // Requests a call, and returns whether the one before has been made. Needs no GIL. The main thread runs signal
  // handlers before it.
  bool Ask() {
    const bool was_back = IsBack();
    const uintptr_t number = asked.fetch_add(1) + 1;
    const int full = Py_AddPendingCall(
        [](void* argument) {
          Instance().did.store(reinterpret_cast<uintptr_t>(argument));
          return 0;
        },
        reinterpret_cast<void*>(number));
    if (full != 0) did.store(number);  // CPython's queue is full: another pending call has the same effect
    return was_back;
  }
  bool IsBack() const { return did.load() == asked.load(); }
  static MainThread& Instance() {
    static MainThread instance;
    return instance;
  }
};

// Runs the handlers of pending signals. Returns whether one raised; its exception is raised at the main thread's
// position.
bool HandlersRaise() {
  if (PyErr_CheckSignals() == 0) return false;
  if (PyFrameObject* frame = PyEval_GetFrame()) PyTraceBack_Here(frame);
  return true;
}

// Makes these handlers run before an exception passes through a frame of the main thread; an exception that they raise
// replaces it. False if that thread has another trace function, or if this Python has `sys.monitoring` for this
// purpose.
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

// Ends this process by a signal's default action after `seconds`, or `more` later if all `others` have ended or are
// about to. Needs no Python, whose interpreter may be gone by then.
void EndLater(int number, double seconds, double more, std::vector<int> others) {
  std::thread([number, seconds, more, others = std::move(others)] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const std::vector<int> gone =
        RunningEngine() == nullptr ? std::vector<int>{} : RunningEngine()->network().peers().Gone();
    const bool together = std::all_of(others.begin(), others.end(), [&](int process) {
      return std::find(gone.begin(), gone.end(), process) != gone.end();
    });
    if (together) std::this_thread::sleep_for(std::chrono::duration<double>(more));
    EndBySignal(number);
  }).detach();
}

struct AwaitedSignal {
  int number;
  bool main_thread_is_back;
};

}  // namespace

void BindSignals(nanobind::module_& m) {
  namespace nb = nanobind;
  nb::class_<AwaitedSignal>(m, "AwaitedSignal", "What a wait for a signal has ended with.")
      .def_ro("number", &AwaitedSignal::number, "Of the signal; 0: the time is over.")
      .def_ro("main_thread_is_back", &AwaitedSignal::main_thread_is_back,
              "Whether the main thread has been in the interpreter since the signal before.");
  m.def("watch_signals", &WatchSignals, "Makes `await_signal` report SIGINT and SIGTERM if they have handlers.");
  m.def("stop_watching_signals", &StopWatching, "Makes `await_signal` return 0 from now on.");
  m.def(
      "await_signal",
      [](double timeout_s) {
        nb::gil_scoped_release release;
        const int number = AwaitSignal(timeout_s);
        return AwaitedSignal{number, number != 0 ? MainThread::Instance().Ask() : MainThread::Instance().IsBack()};
      },
      nb::arg("timeout_s"), "Waits for a signal, at most timeout_s seconds (negative: no limit).");
  m.def(
      "main_thread_is_back", [] { return MainThread::Instance().IsBack(); },
      "Whether the main thread has been in the interpreter since `await_signal` last returned a signal.");
  m.def("handler_file", &HandlerFile, nb::arg("number"),
        "The file that contains the native handler of a signal; empty if there is none.");
  m.def("end_later", &EndLater, nb::arg("number"), nb::arg("seconds"), nb::arg("more"), nb::arg("others"),
        "Ends this process as `end_by_signal` does after `seconds`, or `more` later if all others end, too.");
  m.def("end_by_signal", &EndBySignal, nb::arg("number"), "Ends this process by the default action of a signal.");
  m.def(
      "interrupt",
      [](const std::string& reason, double age_s) {
        const auto age = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(age_s));
        return RunningEngine() != nullptr && RunningEngine()->Interrupt(reason, Clock::now() - age);
      },
      nb::arg("reason"), nb::arg("age_s"), nb::call_guard<nb::gil_scoped_release>(),
      "Fails the operations that have been in flight for age_s seconds. Returns whether there were any.");
  m.def(
      "say_leaving",
      [](const std::string& why) {
        if (RunningEngine() != nullptr) RunningEngine()->network().peers().SayLeaving(why);
      },
      nb::arg("why"), nb::call_guard<nb::gil_scoped_release>(),
      "Tells the other processes that this one ends, and why. Does not end anything here.");
  m.def("raise_signals_first", &RaiseSignalsFirst, nb::arg("main_thread"), nb::arg("first"),
        "Makes exceptions of signal handlers replace the next exception of the main thread, or stops that. False if it "
        "is "
        "not possible, as from Python 3.12 on.");
  m.def(
      "raise_signals",
      [](const nb::args&) {
        if (HandlersRaise()) throw nb::python_error();
      },
      nb::sig("def raise_signals(*arguments: object) -> None"),
      "Runs the handlers of pending signals if this is the main thread.");
}

}  // namespace jaxring
