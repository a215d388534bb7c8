// Calls of a communicator found again by the arrays that they are given. For small messages a look by dtype and shape
// in Python, and two buffers asked of NumPy, would be a third of a call's time.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxring {

void BindRecent(nanobind::module_& m);

}  // namespace jaxring
