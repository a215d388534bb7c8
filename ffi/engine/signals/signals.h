// Notices SIGINT and SIGTERM and still runs the handlers that are installed. Python's handlers alone do not suffice:
// they run only when the main thread is back in the interpreter, and it may be waiting for a peer in native code.
#pragma once

#include <string>

namespace jaxring {

// Wraps the handlers of these signals in one that records the signal and then calls them. A signal without a handler
// (default action, or ignored) is left alone.
void WatchSignals();
// Wraps handlers that have been installed since. Does nothing before WatchSignals.
void WatchSignalsAgain();
// Waits for a signal and returns its number; a signal that arrived before is returned at once. Returns 0 after
// `timeout_s` (negative: no limit), and from StopWatching on. For one thread only.
int AwaitSignal(double timeout_s);
// Makes AwaitSignal return. Leaves the handlers as they are.
void StopWatching();
// The file of the program or library that contains the handler of a signal; empty if there is no handler.
std::string HandlerFile(int number);
// Ends this process by the default action of a signal.
[[noreturn]] void EndBySignal(int number);

}  // namespace jaxring
