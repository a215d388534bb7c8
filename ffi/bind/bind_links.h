// The functions with which Python (jaxring/world/links.py) makes an engine's links to other processes. Each native
// module has an engine of its own and binds these functions to it.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/runtime.h"

namespace jaxring {

// The engine of this module. Throws std::runtime_error where there is none.
ProcessEngine& Running();

void BindLinks(nanobind::module_& m);

}  // namespace jaxring
