// A cache of a communicator's calls, by the arrays that they are given. For small messages a lookup by dtype and shape
// in Python, and two buffer requests to NumPy, would take a third of a call's time.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxring {

void BindRecent(nanobind::module_& m);

}  // namespace jaxring
