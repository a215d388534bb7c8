// Writes a copy of the process's flight record on SIGUSR1, or when the process ends by an error.
#pragma once

#include <cstddef>
#include <string>

namespace jaxring {

// Installs the handler. `record` must stay valid until the process ends. The copies are PREFIX0.trace, PREFIX1.trace,
// ..., of mode 0600. With an empty prefix, because the record is a file already, no copy is made and the signal has no
// effect. A handler that is already installed stays, and a later one replaces this one. Only the first call has an
// effect.
void DumpOnSignal(const void* record, size_t bytes, const std::string& prefix);
// Writes the next copy now, also if the signal has another handler. `say`: reports it on stderr.
void DumpNow(bool say);

}  // namespace jaxring
