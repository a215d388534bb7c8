// Signal handling for Python (jaxring/runtime/interruption.py): waits for signals, and interrupts operations.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxring {

void BindSignals(nanobind::module_& m);

}  // namespace jaxring
