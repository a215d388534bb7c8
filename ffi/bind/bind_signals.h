// What Python (jaxring/runtime/interruption.py) learns of signals, and how it ends waits for them.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxring {

void BindSignals(nanobind::module_& m);

}  // namespace jaxring
