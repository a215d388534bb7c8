// On SIGUSR1, or when it ends by an error, a process writes a copy of its flight record.
#pragma once

#include <cstddef>
#include <string>

namespace jaxring {

// `record` stays for good. The copies are PREFIX0.trace, PREFIX1.trace, ..., of mode 0600; with an empty prefix none is
// made, because the record is a file already, and the signal does nothing. A handler that somebody has installed stays,
// and who installs one later replaces this one. Only the first call does anything.
void DumpOnSignal(const void* record, size_t bytes, const std::string& prefix);
// Does at once what the signal does, also where that is somebody else's: writes the next copy and says so on stderr.
void DumpNow();

}  // namespace jaxring
