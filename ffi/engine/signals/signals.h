// Notices SIGINT and SIGTERM without taking them from the handlers that are installed: Python's run only when the main
// thread is back in the interpreter, and that may be waiting for a peer in native code.
#pragma once

#include <string>

namespace jaxring {

// From now on handlers of these signals are called through one of ours, which notes the signal first. A signal without
// a handler (default action, or ignored) is left alone.
void WatchSignals();
// The same for handlers that have been installed since. Does nothing before WatchSignals.
void WatchSignalsAgain();
// The number of a signal that has come and was not returned yet, else of the next one; 0 after `timeout_s` (negative:
// never) and from StopWatching on. For one thread.
int AwaitSignal(double timeout_s);
// AwaitSignal returns. Handlers stay as they are.
void StopWatching();
// The file of the program or library that has the handler of a signal; empty where there is none.
std::string HandlerFile(int number);
// Ends this process by the default action of a signal.
[[noreturn]] void EndBySignal(int number);

}  // namespace jaxring
