// The functions with which Python (jaxring/world/links.py) makes the links of this process to others. jaxring._native
// has them; the CUDA engine uses the same links.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/runtime.h"

namespace jaxring {

// The engine of this process. Throws std::runtime_error where there is none.
ProcessEngine& Running();

void BindLinks(nanobind::module_& m);

}  // namespace jaxring
