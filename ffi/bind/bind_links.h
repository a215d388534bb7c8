// The functions by which Python (jaxring/world/links.py) gives an engine its links to other processes. Both modules
// have an engine of their own and bind the same functions to it.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/runtime.h"

namespace jaxring {

// The engine of this module. Throws std::runtime_error where there is none.
Engine& Running();

void BindLinks(nanobind::module_& m);

}  // namespace jaxring
