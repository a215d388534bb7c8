// The name of a thread as the system shows it: in /proc, `top -H` and debuggers.
#pragma once

#include <pthread.h>

namespace jaxring {

// Names the calling thread; at most 15 characters. Otherwise it has the name of the thread that made it.
inline void NameThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace jaxring
