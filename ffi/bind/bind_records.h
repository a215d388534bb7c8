// What the engine has recorded and what heartbeats have told it, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxring {

void BindRecords(nanobind::module_& m);

}  // namespace jaxring
