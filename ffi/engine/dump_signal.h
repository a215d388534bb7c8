// On SIGUSR1 a process writes a copy of its flight record, and goes on.
#pragma once

#include <cstddef>
#include <string>

namespace jaxring {

// `record` stays for good. The copies are PREFIX0.trace, PREFIX1.trace, ..., of mode 0600; with an empty prefix none is
// made, because the record is a file already, and the signal does nothing. A handler that somebody has installed stays,
// and who installs one later replaces this one. Only the first call does anything.
void DumpOnSignal(const void* record, size_t bytes, const std::string& prefix);

}  // namespace jaxring
