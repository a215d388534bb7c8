// For sources that call std::condition_variable::wait. Since it became noexcept, libstdc++ 12 and later export it once
// more, and a module would be bound to that: GLIBCXX_3.4.30, which systems of the same C library (2.34, such as RHEL 9)
// lack. The older one is the same function, and every libstdc++ has it.
#pragma once

#include <condition_variable>

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 12
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
