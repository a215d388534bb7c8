// Planning requests, and the plans that Python makes of them.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxring {

void BindPlans(nanobind::module_& m);

}  // namespace jaxring
